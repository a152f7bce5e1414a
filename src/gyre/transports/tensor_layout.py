"""Slices of tensors and bundle manifests (pure).

Which parts of tensors that others hold make up the parts that are wanted.

A cut is a box within a whole tensor. Stages hold different tensors and shards different boxes of
one, so what one layout of a cell holds is put together for any other from the boxes they share.

What bytes say about themselves: which tensors lie where, and the hash of every block of them.

Rule 1: a sheet from outside is believed only once all of its numbers fit each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import msgspec

from gyre.types.errors import TransferError

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A box of a tensor: the shape of the whole, where the box begins in it, and its shape."""

    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def all_of(cls, shape: Sequence[int]) -> "TensorSlice":
        return cls(whole=tuple(shape), start=(0,) * len(shape), shape=tuple(shape))

    @classmethod
    def part_of(
        cls, whole: Sequence[int], shape: Sequence[int], index: int
    ) -> "TensorSlice | None":
        """Part `index` of a tensor that is cut into equal ones along one dimension.

        None where no cut along one dimension has that shape.
        """
        if len(whole) != len(shape):
            return None
        dims = [dim for dim, size in enumerate(shape) if size != whole[dim]]
        if not dims:
            return cls.all_of(shape)
        size = shape[dims[0]]
        if len(dims) > 1 or size == 0 or (index + 1) * size > whole[dims[0]]:
            return None
        start = [0] * len(whole)
        start[dims[0]] = index * size
        return cls(whole=tuple(whole), start=tuple(start), shape=tuple(shape))

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(at + size for at, size in zip(self.start, self.shape, strict=True))

    @property
    def num_values(self) -> int:
        return prod(self.shape)

    @property
    def is_within_bounds(self) -> bool:
        return len(self.whole) == len(self.start) == len(self.shape) and all(
            at >= 0 and size >= 0 and at + size <= most
            for most, at, size in zip(self.whole, self.start, self.shape, strict=True)
        )

    def shared_with(self, other: "TensorSlice") -> "TensorSlice | None":
        """The box that both have; None where there is none."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        shape = tuple(end - at for at, end in zip(start, stop, strict=True))
        if any(size <= 0 for size in shape):
            return None
        return TensorSlice(whole=self.whole, start=start, shape=shape)

    def without(self, other: "TensorSlice") -> "Iterator[TensorSlice]":
        """The rest of this box as boxes, when one that lies within it is taken out."""
        start, stop = list(self.start), list(self.stop)
        for dim in range(len(start)):
            for begin, end in ((start[dim], other.start[dim]), (other.stop[dim], stop[dim])):
                if begin < end:
                    low, high = [*start], [*stop]
                    low[dim], high[dim] = begin, end
                    shape = tuple(above - below for below, above in zip(low, high, strict=True))
                    yield TensorSlice(whole=self.whole, start=tuple(low), shape=shape)
            start[dim], stop[dim] = other.start[dim], other.stop[dim]

    def slices(self, within: "TensorSlice") -> Slices:
        """Where this box is in one that it lies within."""
        return tuple(
            slice(at - begin, at - begin + size)
            for at, begin, size in zip(self.start, within.start, self.shape, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCopy:
    """A box that one holder has of a tensor, and where it belongs in what is wanted."""

    holder: int
    source: Slices
    """Within what the holder has."""
    target: Slices
    """Within what is wanted."""


def planned(wanted: TensorSlice, held: Mapping[int, TensorSlice], name: str) -> list[SliceCopy]:
    """Boxes that make up the wanted one, each value once, from as few of the first holders as do.

    TransferError where they hold another tensor of that name, or not all of it.
    """
    missing, found = [wanted] if wanted.num_values else [], []
    for holder, cut in held.items():
        if cut.whole != wanted.whole:
            message = f"{name}: expected a tensor of shape {wanted.whole}, found {cut.whole}"
            raise TransferError(message, retryable=False)
        rest: list[TensorSlice] = []
        for box in missing:
            shared = box.shared_with(cut)
            if shared is None:
                rest.append(box)
                continue
            found.append(
                SliceCopy(holder=holder, source=shared.slices(cut), target=shared.slices(wanted))
            )
            rest += box.without(shared)
        missing = rest
    if missing:
        lacking = sum(box.num_values for box in missing)
        message = f"{name}: nobody holds {lacking} of the {wanted.num_values} values wanted"
        raise TransferError(message, retryable=False)
    return found


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
