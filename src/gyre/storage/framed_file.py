"""Append-only files of framed, checksummed records.

A frame is length and CRC-32 of its payload (two little-endian uint32), then the payload.
Rule 1: a frame is in the file or it is not, never half, unless its writer died over it.
Rule 2: only the tail may be torn; damage with a sound frame after it is reported, not skipped.
"""

import fcntl
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct

from gyre.types.errors import ConfigError, LogDamaged

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
    for bit in bits:
        sums += [bit ^ before for before in sums]
    return sums


MOST_FRAME_BYTES = 2**30

_HEAD = Struct("<II")
HEAD_BYTES = _HEAD.size


def framed(payload: bytes) -> bytes:
    """The bytes that stand for a payload in a file."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def payload_at(data: bytes, at: int) -> bytes | None:
    """The payload of the frame that begins there, if one does and it is sound."""
    if at + _HEAD.size > len(data):
        return None
    length, checksum = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if length == 0 or length > MOST_FRAME_BYTES or end > len(data):
        return None
    payload = data[at + _HEAD.size : end]
    return payload if zlib.crc32(payload) == checksum else None


def next_sound(data: bytes, start: int) -> int | None:
    """Where the first sound frame from there on begins, past any damage before it.

    Ids of tokens look like lengths, and the parts that they would be the lengths of overlap.
    """
    checksums = Checksums(data)
    for begin in range(start + _HEAD.size, len(data)):
        length, checksum = _HEAD.unpack_from(data, begin - _HEAD.size)
        if (
            0 < length <= min(MOST_FRAME_BYTES, len(data) - begin)
            and checksums.of(begin, begin + length) == checksum
        ):
            return begin - _HEAD.size
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The sound frames of a file, and where they end."""

    payloads: tuple[tuple[int, bytes], ...]
    """Each with the byte at which its frame begins."""
    sound_bytes: int
    torn_bytes: int
    """Bytes of a last frame that was being written when its writer died."""


def scan(path: Path, *, magic: bytes, what: str) -> Scan:
    """All frames of a file; a torn tail is left out, damage before the tail raises LogDamaged."""
    data = path.read_bytes()
    if not data.startswith(magic):
        if magic.startswith(data):
            return Scan(payloads=(), sound_bytes=0, torn_bytes=len(data))
        raise LogDamaged(f"{path}: not a {what}: it does not begin with {magic.decode()}")
    payloads = []
    at = len(magic)
    while (payload := payload_at(data, at)) is not None:
        payloads.append((at, payload))
        at += _HEAD.size + len(payload)
    # A damaged length looks like a torn tail, but for what comes after it.
    if at < len(data) and (later := next_sound(data, at + 1)) is not None:
        raise LogDamaged(
            f"{path}: damaged at byte {at} (record {len(payloads) + 1}), "
            f"with a sound record after it at byte {later}"
        )
    return Scan(payloads=tuple(payloads), sound_bytes=at, torn_bytes=len(data) - at)


def locked(path: Path, *, create: bool) -> int | None:
    """A descriptor that keeps other writers out until it is closed; None if one is in.

    ConfigError where the file system has no locks.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    lock = os.open(path, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise ConfigError(f"{path}: it cannot be locked: {error.strerror}") from error
    return lock


class FramedFile:
    """A file of checksummed frames, opened by its one writer."""

    def __init__(self, path: Path, *, magic: bytes, sound_bytes: int = 0) -> None:
        """Goes on after the sound part and forgets what is behind it."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size_bytes = sound_bytes
        self._closed = False
        try:
            os.ftruncate(self._fd, sound_bytes)
            if sound_bytes == 0:
                self.append_raw(magic)
        except OSError:
            os.close(self._fd)
            raise

    def append_raw(self, data: bytes) -> None:
        """The bytes, which are frames already, survive the death of this process.

        Raises OSError (a full disk) with the file as it was.
        """
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:] if done else data, self.size_bytes + done)
        except OSError:
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(data)

    def cut(self, size_bytes: int) -> None:
        """What was appended behind this size is not in the file."""
        os.ftruncate(self._fd, size_bytes)
        self.size_bytes = size_bytes

    def sync(self) -> None:
        """Every frame appended before this call is on the disk; may run on another thread."""
        try:
            if not self._closed:
                os.fdatasync(self._fd)
        except OSError:
            # Closed by its owner in the same moment, which synced it.
            if not self._closed:
                raise

    def close(self) -> None:
        """Syncs and lets go of the file, also when that fails."""
        try:
            os.fdatasync(self._fd)
        finally:
            self._closed = True
            os.close(self._fd)
