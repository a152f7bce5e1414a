"""Sums of gradients over packs, as wide floats or exact, whole claims or nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gyre.trainer.buckets import Buckets
from gyre.trainer.exact import UNIT, SumBounds, as_floats, require_sum
from gyre.types.errors import CellError


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
        # Whoever has them may write to them, so from here on they are not known to be zero.
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
