"""Gradient sums in flat buckets, float or exact integer.

Gradients as whole multiples of 2**-44, which add up to the same bits in any order (SPEC 3.6).

Rule 1: a gradient is rounded once, when it comes out of its backward pass; sums are exact.
Rule 2: a sum that could have wrapped or is no number is NotFinite before any caller gets it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf

import torch
from torch import Tensor, nn

from gyre.types.errors import CellError, NotFinite

BUCKET_VALUES = 2**26
"""Values of one flat tensor: enough for a reduction to run at full speed, little as scratch."""


class Buckets:
    """Gradient sums in a few flat tensors, with a view of one of them for each parameter."""

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        dtype: torch.dtype,
        device: torch.device,
        bucket_values: int = BUCKET_VALUES,
    ) -> None:
        self._shapes = dict(shapes)
        self._dtype = dtype
        self._device = device
        self._groups = _groups(self._shapes, bucket_values)
        self._away: list[Tensor] | None = None
        # Kept once made, because pinning memory takes longer than copying into it.
        self._pinned: list[Tensor] = []
        self._flats: list[Tensor] | None = self._new(device)
        self._views = self._make_views(self._flats)

    @property
    def flats(self) -> list[Tensor]:
        """The flat tensors; a parameter larger than a bucket has one of its own."""
        if self._flats is None:
            raise CellError("the trainer's state rests in host memory: restore it first")
        return self._flats

    @property
    def views(self) -> Mapping[str, Tensor]:
        """By parameter, in the parameter's shape."""
        if self._flats is None:
            raise CellError("the trainer's state rests in host memory: restore it first")
        return self._views

    @property
    def values(self) -> Mapping[str, Tensor]:
        """As `views`, wherever they are now, for who only reads them."""
        if self._flats is not None:
            return self._views
        away = self._new(torch.device("cpu")) if self._away is None else self._away
        return self._make_views(away)

    @property
    def is_resting(self) -> bool:
        return self._flats is None

    def zero(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def offload(self, *, copied: bool = True) -> None:
        """Device memory is let go; copies begun here are complete once the device is idle.

        Without a copy the values are zeros when they come back.
        """
        if self._flats is None:
            return
        self._away = self._to_host(self._flats) if copied else None
        self._flats = None
        self._views = {}

    def reload(self) -> None:
        """Back on the device; if it has no room, everything stays where it rests."""
        if self._flats is not None:
            return
        flats = self._new(self._device) if self._away is None else self._from_host(self._away)
        self._flats = flats
        self._views = self._make_views(flats)

    def _to_host(self, flats: list[Tensor]) -> list[Tensor]:
        if self._device.type == "cpu":
            return flats
        if not self._pinned:
            self._pinned = self._new(torch.device("cpu"), pinned=True)
        for host, flat in zip(self._pinned, flats, strict=True):
            host.copy_(flat, non_blocking=True)
        return self._pinned

    def _from_host(self, hosts: list[Tensor]) -> list[Tensor]:
        if self._device.type == "cpu":
            return hosts
        flats = self._new(self._device)
        for host, flat in zip(hosts, flats, strict=True):
            flat.copy_(host, non_blocking=True)
        return flats

    def _new(self, device: torch.device, *, pinned: bool = False) -> list[Tensor]:
        sizes = [sum(self._shapes[name].numel() for name in group) for group in self._groups]
        return [
            torch.zeros(size, dtype=self._dtype, device=device, pin_memory=pinned) for size in sizes
        ]

    def _make_views(self, flats: list[Tensor]) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {}
        for group, flat in zip(self._groups, flats, strict=True):
            parts = torch.split(flat, [self._shapes[name].numel() for name in group])
            for name, part in zip(group, parts, strict=True):
                views[name] = part.view(self._shapes[name])
        return views


def _groups(shapes: Mapping[str, torch.Size], most: int) -> list[list[str]]:
    groups: list[list[str]] = []
    room = 0
    for name, shape in shapes.items():
        if not groups or shape.numel() > room:
            groups.append([])
            room = most
        groups[-1].append(name)
        room -= shape.numel()
    return groups


UNIT = 2.0**-44
"""The value of one: a step clipped to norm 1 over 10**12 parameters still has 24 bits in each."""

CELL_LIMIT = 2.0**54
"""How far from zero the sum of one cell may get: 1024 in units of the gradient."""

TOTAL_LIMIT = 2.0**62
"""The same for a sum over cells: 256 of them cannot wrap, in any order."""


class SumBounds:
    """How far from zero each parameter's sum can be at most, kept where the sums are."""

    def __init__(self, names: Sequence[str], *, wide: torch.dtype, device: torch.device) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._wide = wide
        self._most = torch.zeros(len(names), dtype=torch.float64, device=device)
        self._saved = self._most.clone()

    def add(self, name: str, gradient: Tensor, into: Tensor) -> None:
        """The gradient, rounded, is in the sum; `check` tells later whether that went well.

        The device is not asked now, because it would be for every parameter of every pack.
        """
        scaled = gradient.to(self._wide).mul(1 / UNIT).round_()
        # The largest value of each pack, added up, bounds every partial sum; no number stays none.
        self._most[self._places[name]] += torch.linalg.vector_norm(scaled, ord=inf)
        into.add_(scaled.to(torch.int64))

    def check(self) -> None:
        """Raises NotFinite unless every sum is what was added up."""
        if bool((self._most < CELL_LIMIT).all()):
            return
        for name, most in zip(self._places, self._most.tolist(), strict=True):
            if not most < CELL_LIMIT:
                found = f"values up to {most * UNIT:g}, where {CELL_LIMIT * UNIT:g} is the most"
                raise NotFinite(f"the gradient of {name}: {found}", retryable=False)

    def clear(self) -> None:
        self._most.zero_()

    def save(self) -> None:
        self._saved.copy_(self._most)

    def undo(self) -> None:
        self._most.copy_(self._saved)


def require_sum(*flats: Tensor) -> None:
    """Raises NotFinite unless these, added to each other, stay a sum that did not wrap."""
    most = 0.0
    for flat in flats:
        low, high = torch.aminmax(flat)
        # As Python's numbers, because the least int64 has no counterpart.
        most += max(-float(low), float(high))
    if not most < TOTAL_LIMIT:
        found = f"values up to {most * UNIT:g}, where {TOTAL_LIMIT * UNIT:g} is the most"
        raise NotFinite(f"sums of gradients over cells: {found}", retryable=False)


def as_floats(flats: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """Each in turn, rounded once, in room that the next one takes over."""
    largest = max(flats, key=Tensor.numel)
    # Made now and not with the first value, because by then a step has begun.
    room = torch.empty(largest.shape, dtype=dtype, device=largest.device)
    return (room[: flat.numel()].copy_(flat).mul_(UNIT) for flat in flats)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums and optimizer state are kept for a model of this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class GradientSums:
    """What backward passes have added so far; it takes each parameter's `grad` as it comes."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, exact: bool = False) -> None:
        """Exact sums are whole numbers of `unit`, with the same bits in any order (SPEC 3.6)."""
        self._parameters = list(parameters.values())
        first = self._parameters[0]
        shapes = {name: one.shape for name, one in parameters.items()}
        self._wide = wide(first.dtype)
        dtype = torch.int64 if exact else self._wide
        self._buckets = Buckets(shapes, dtype=dtype, device=first.device)
        self._reach: SumBounds | None = None
        if exact:
            self._reach = SumBounds(list(shapes), wide=self._wide, device=first.device)
        self._is_clear = True
        self._saved: list[Tensor] | None = None
        for name, one in parameters.items():
            one.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._taker(name) if self._reach is None else self._exact_taker(name, self._reach)
            )

    @property
    def is_resting(self) -> bool:
        return self._buckets.is_resting

    @property
    def unit(self) -> float:
        """What a one in these sums stands for."""
        return 1.0 if self._reach is None else UNIT

    @property
    def flats(self) -> list[Tensor]:
        """To be reduced over cells in place, bucket by bucket; NotFinite for what is no sum."""
        self.check()
        # The caller may write to them, so from here on they are not known to be zero.
        self._is_clear = False
        return self._buckets.flats

    @property
    def views(self) -> Mapping[str, Tensor]:
        """By parameter, the same memory."""
        self.check()
        self._is_clear = False
        return self._buckets.views

    def floats(self) -> Iterable[Tensor]:
        """The buckets as an optimizer reads them, each to be used before the next is asked for."""
        return self.flats if self._reach is None else as_floats(self.flats, self._wide)

    def check(self) -> None:
        """Raises NotFinite where an exact sum is none; what floats hold, their norm tells."""
        if self._reach is not None:
            self._reach.check()

    def add(self, flats: Sequence[Tensor]) -> None:
        """Adds sums of another cell."""
        mine = self._buckets.flats
        self._require_alike(flats)
        if self._reach is not None:
            for one, other in zip(mine, flats, strict=True):
                require_sum(one, other)
        for one, other in zip(mine, flats, strict=True):
            one.add_(other.to(one.device))
        self._is_clear = False

    def replace(self, flats: Sequence[Tensor]) -> None:
        """The sums are these, and no longer what was added here."""
        self._require_alike(flats)
        if self._reach is not None:
            for one in flats:
                require_sum(one)
            self._reach.clear()
        for one, other in zip(self._buckets.flats, flats, strict=True):
            one.copy_(other)
        self._is_clear = False

    def clear(self) -> None:
        if not self._is_clear:
            self._buckets.zero()
            if self._reach is not None:
                self._reach.clear()
        self._is_clear = True

    @contextmanager
    def claim(self) -> Iterator[None]:
        """What is added inside counts only if the block ends well (SPEC 3.2).

        A copy is kept meanwhile, and not a second sum added at the end, because then the last
        bits would depend on which packs were claimed together (SPEC 3.6).
        """
        was_clear = self._is_clear
        if not was_clear:
            self._save()
        done = False
        try:
            yield
            self.check()
            done = True
        finally:
            if not done:
                self._undo(was_clear=was_clear)

    def _save(self) -> None:
        if self._saved is None:
            self._saved = [torch.empty_like(flat) for flat in self._buckets.flats]
        for saved, flat in zip(self._saved, self._buckets.flats, strict=True):
            saved.copy_(flat)
        if self._reach is not None:
            self._reach.save()

    def _undo(self, *, was_clear: bool) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        if was_clear:
            self.clear()
            return
        assert self._saved is not None
        for saved, flat in zip(self._saved, self._buckets.flats, strict=True):
            flat.copy_(saved)
        if self._reach is not None:
            self._reach.undo()

    def offload(self) -> None:
        """Leaves the device; sums that are clear leave nothing to be copied."""
        self._saved = None
        self._buckets.offload(copied=not self._is_clear)

    def reload(self) -> None:
        self._buckets.reload()

    def _taker(self, name: str) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self._is_clear = False
            self._buckets.views[name].add_(parameter.grad)
            parameter.grad = None

        return take

    def _exact_taker(self, name: str, reach: SumBounds) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self._is_clear = False
            reach.add(name, parameter.grad, self._buckets.views[name])
            parameter.grad = None

        return take

    def _require_alike(self, flats: Sequence[Tensor]) -> None:
        mine = self._buckets.flats
        if [one.shape for one in flats] != [one.shape for one in mine]:
            shapes = [tuple(one.shape) for one in flats]
            raise CellError(f"gradients in buckets of {shapes} are of another model")
        for one, other in zip(mine, flats, strict=True):
            if one.dtype != other.dtype:
                types = f"{other.dtype} where this cell's are {one.dtype}"
                raise CellError(f"gradients are {types}: deterministic mode is for all or none")
