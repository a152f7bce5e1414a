"""Gradients as whole multiples of 2**-44, which add up to the same bits in any order (SPEC 3.6).

Rule 1: a gradient is rounded once, when it comes out of its backward pass; sums are exact.
Rule 2: a sum that could have wrapped or is no number is NotFinite before anybody gets it.
"""

from collections.abc import Iterator, Sequence
from math import inf

import torch
from torch import Tensor

from gyre.types.errors import NotFinite

UNIT = 2.0**-44
"""The value of one: a step clipped to norm 1 over 10**12 parameters still has 24 bits in each."""

CELL_LIMIT = 2.0**54
"""How far from zero the sum of one cell may get: 1024 in units of the gradient."""

TOTAL_LIMIT = 2.0**62
"""The same for a sum over cells: 256 of them cannot wrap, whoever adds them up."""


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
