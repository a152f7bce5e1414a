"""Which parts of tensors that others hold make up the parts that are wanted.

A cut is a box within a whole tensor. Stages hold different tensors and shards different boxes of
one, so what one layout of a cell holds is put together for any other from the boxes they share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

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
