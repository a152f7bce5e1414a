"""Sums of gradients over packs, wide, in the order of backward passes, whole claims or nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gyre.train.buckets import Buckets
from gyre.words.errors import CellError


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums and optimizer state are kept for a model of this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class GradientSums:
    """What backward passes have added so far; it takes each parameter's `grad` as it comes."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = list(parameters.values())
        first = self._parameters[0]
        shapes = {name: one.shape for name, one in parameters.items()}
        self._buckets = Buckets(shapes, dtype=wide(first.dtype), device=first.device)
        self._is_clear = True
        self._saved: list[Tensor] | None = None
        for name, one in parameters.items():
            one.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._taker(name)
            )

    @property
    def is_resting(self) -> bool:
        return self._buckets.is_resting

    @property
    def flats(self) -> list[Tensor]:
        """To be reduced over cells in place, bucket by bucket."""
        # Whoever has them may write to them, so from here on they are not known to be zero.
        self._is_clear = False
        return self._buckets.flats

    @property
    def views(self) -> Mapping[str, Tensor]:
        """By parameter, the same memory."""
        self._is_clear = False
        return self._buckets.views

    def add(self, flats: Sequence[Tensor]) -> None:
        """Adds sums of another cell."""
        mine = self._buckets.flats
        if [one.shape for one in flats] != [one.shape for one in mine]:
            found = [tuple(one.shape) for one in flats]
            raise CellError(f"adding gradients of buckets {found}: they are of another model")
        for one, other in zip(mine, flats, strict=True):
            one.add_(other.to(one.device))
        self._is_clear = False

    def clear(self) -> None:
        if not self._is_clear:
            self._buckets.zero()
        self._is_clear = True

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Whatever is added inside counts only if the block ends well (SPEC 3.2).

        A copy is kept meanwhile, and not a second sum added at the end, because then the last
        bits would depend on which packs were claimed together (SPEC 3.6).
        """
        was_clear = self._is_clear
        if not was_clear:
            self._save()
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self._undo(was_clear=was_clear)

    def _save(self) -> None:
        if self._saved is None:
            self._saved = [torch.empty_like(flat) for flat in self._buckets.flats]
        for saved, flat in zip(self._saved, self._buckets.flats, strict=True):
            saved.copy_(flat)

    def _undo(self, *, was_clear: bool) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        if was_clear:
            self.clear()
            return
        assert self._saved is not None
        for saved, flat in zip(self._saved, self._buckets.flats, strict=True):
            flat.copy_(saved)

    def rest(self) -> None:
        """Leaves the device; sums that are clear leave nothing to be copied."""
        self._saved = None
        self._buckets.rest(copied=not self._is_clear)

    def restore(self) -> None:
        self._buckets.restore()

    def _taker(self, name: str) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self._is_clear = False
            self._buckets.views[name].add_(parameter.grad)
            parameter.grad = None

        return take
