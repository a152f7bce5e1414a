"""What bytes say about themselves: which tensors lie where, and the hash of every block of them.

Rule 1: a sheet from outside is believed only once all of its numbers fit each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gyre.transports.cuts import TensorSlice
from gyre.types.errors import TransferError

BLOCK_BYTES = 2**22
"""What is hashed together, so that a part can be read and still be checked."""
MOST_BLOCK_BYTES = 2**26
ALIGNED_BYTES = 64
"""Every tensor begins at a multiple of this, and so does the first block."""
MOST_SHEET_BYTES = 2**26
"""More than a million tensors take."""
MOST_DIMS = 8
MOST_BYTES = 2**48
"""Of all tensors of one sheet: more than any machine has."""
HASH_DIGITS = 16
WIDTHS: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}
"""Bytes of a value, by its type."""


class _Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    whole: list[int]
    start: list[int]
    shape: list[int]
    at: int


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    block_bytes: int
    num_bytes: int
    hashes: list[str]
    rows: list[_Row]


_TABLE = msgspec.json.Decoder(_Table)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor, or a part of one, and where its bytes begin."""

    dtype: str
    cut: TensorSlice
    at: int
    """Counted from the first block."""

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def num_bytes(self) -> int:
        return self.cut.num_values * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Tensors by name, in blocks that are known by their hashes."""

    tensors: Mapping[str, TensorEntry]
    num_bytes: int
    """Of all blocks together."""
    hashes: Sequence[str]
    """64 bits of each block, in hex."""
    block_bytes: int = BLOCK_BYTES

    def block(self, index: int) -> tuple[int, int]:
        """Where it begins and ends."""
        return index * self.block_bytes, min((index + 1) * self.block_bytes, self.num_bytes)


def rounded(at: int) -> int:
    """The first place from there on where a tensor may begin."""
    return -(-at // ALIGNED_BYTES) * ALIGNED_BYTES


def laid_out(tensors: Mapping[str, tuple[str, TensorSlice]]) -> tuple[dict[str, TensorEntry], int]:
    """Places for tensors of these types, one after the other, and the bytes they take."""
    found, at = {}, 0
    for name, (dtype, cut) in tensors.items():
        if dtype not in WIDTHS:
            message = f"{name}: expected a type of {sorted(WIDTHS)}, found {dtype}"
            raise TransferError(message, retryable=False)
        one = TensorEntry(dtype=dtype, cut=cut, at=at)
        found[name] = one
        at = rounded(at + one.num_bytes)
    return found, at


def written(sheet: TensorLayout) -> bytes:
    rows = [
        _Row(name, one.dtype, [*one.cut.whole], [*one.cut.start], [*one.cut.shape], one.at)
        for name, one in sheet.tensors.items()
    ]
    table = _Table(
        block_bytes=sheet.block_bytes,
        num_bytes=sheet.num_bytes,
        hashes=list(sheet.hashes),
        rows=rows,
    )
    return msgspec.json.encode(table)


def read_sheet(text: bytes, *, room_bytes: int) -> TensorLayout:
    """The sheet of blocks for which there is so much room; TransferError for anything else."""
    try:
        table = _TABLE.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_sheet(str(error)) from error
    _check_blocks(table, room_bytes)
    tensors: dict[str, TensorEntry] = {}
    for row in table.rows:
        if row.name in tensors:
            raise _no_sheet(f"{row.name!r} is there twice")
        tensors[row.name] = _checked(row, table.num_bytes)
    return TensorLayout(
        tensors=tensors,
        num_bytes=table.num_bytes,
        hashes=table.hashes,
        block_bytes=table.block_bytes,
    )


def _check_blocks(table: _Table, room_bytes: int) -> None:
    if not 0 <= table.num_bytes <= min(room_bytes, MOST_BYTES):
        raise _no_sheet(f"{table.num_bytes} bytes where there are {room_bytes}")
    if not (0 < table.block_bytes <= MOST_BLOCK_BYTES and table.block_bytes % ALIGNED_BYTES == 0):
        raise _no_sheet(f"blocks of {table.block_bytes} bytes")
    blocks = -(-table.num_bytes // table.block_bytes)
    if len(table.hashes) != blocks or any(len(one) != HASH_DIGITS for one in table.hashes):
        raise _no_sheet(f"{len(table.hashes)} hashes for {blocks} blocks")


def _checked(row: _Row, num_bytes: int) -> TensorEntry:
    cut = TensorSlice(whole=tuple(row.whole), start=tuple(row.start), shape=tuple(row.shape))
    if row.dtype not in WIDTHS or len(cut.whole) > MOST_DIMS or not cut.is_within_bounds:
        raise _no_sheet(f"{row.name!r}: {row.dtype} of {row.shape} from {row.start} of {row.whole}")
    one = TensorEntry(dtype=row.dtype, cut=cut, at=row.at)
    if row.at < 0 or row.at % ALIGNED_BYTES or row.at + one.num_bytes > num_bytes:
        raise _no_sheet(f"{row.name!r}: {one.num_bytes} bytes from {row.at} of {num_bytes}")
    return one


def _no_sheet(found: str) -> TransferError:
    return TransferError(f"expected a sheet of tensors, found {found}", retryable=False)
