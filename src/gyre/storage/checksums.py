"""The CRC-32 of any part of some bytes, in as many steps for a long part as for a short one."""

import zlib
from collections.abc import Sequence
from functools import cache

BLOCK_BYTES = 64
"""Between two places whose checksums are kept."""

_Tables = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]


class Checksums:
    """Checksums of all beginnings of the bytes, from which that of any part follows."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._kept = [0]
        for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            self._kept.append(zlib.crc32(block, self._kept[-1]))

    def of(self, start: int, end: int) -> int:
        """What `zlib.crc32` says of the bytes between these places."""
        return self._until(end) ^ _with_zeros(self._until(start), end - start)

    def _until(self, end: int) -> int:
        kept = end // BLOCK_BYTES
        return zlib.crc32(self._data[kept * BLOCK_BYTES : end], self._kept[kept])


def _with_zeros(checksum: int, num_bytes: int) -> int:
    """What becomes of a checksum's bits when so many zeros follow."""
    for power in range(num_bytes.bit_length()):
        if num_bytes >> power & 1:
            checksum = _applied(_zeros(power), checksum)
    return checksum


def _applied(tables: _Tables, checksum: int) -> int:
    first, second, third, fourth = tables
    return (
        first[checksum & 255]
        ^ second[checksum >> 8 & 255]
        ^ third[checksum >> 16 & 255]
        ^ fourth[checksum >> 24]
    )


@cache
def _zeros(power: int) -> _Tables:
    """What 2**power zeros make of each byte of a checksum; the bytes' results are added (xor)."""
    if power == 0:
        alone = zlib.crc32(b"\0")
        bits = [zlib.crc32(b"\0", 1 << bit) ^ alone for bit in range(32)]
    else:
        half = _zeros(power - 1)
        bits = [_applied(half, _applied(half, 1 << bit)) for bit in range(32)]
    return (_sums(bits[:8]), _sums(bits[8:16]), _sums(bits[16:24]), _sums(bits[24:]))


def _sums(bits: Sequence[int]) -> Sequence[int]:
    """Of every choice among eight."""
    sums = [0]
    for one in bits:
        sums += [one ^ before for before in sums]
    return sums
