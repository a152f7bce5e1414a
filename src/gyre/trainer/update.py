"""What every trainer does alike: one step from a sum, rest, and equal bits on request."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from time import perf_counter

import torch

from gyre.trainer.gradients import GradientSums
from gyre.trainer.optimizer import Adam
from gyre.trainer.resting import Offloadable, OffloadableWeights
from gyre.trainer.room import oom_guard, release, synchronize
from gyre.types.errors import CellError, NotFinite, OutOfMemory
from gyre.types.reports import StepReport


def core(adam: Adam | None) -> Adam:
    """The optimizer, which only the core has (SPEC 3.1)."""
    if adam is None:
        raise CellError("this trainer has no optimizer: the core's has", retryable=False)
    return adam


def stepped(
    adam: Adam, sums: GradientSums, norm: Callable[[], float], *, version: int
) -> StepReport:
    """The sum is clipped and applied, and is zero again; NotFinite leaves all as it was."""
    began = perf_counter()
    found = oom_guard("a step", norm)
    if not isfinite(found):
        message = f"step from version {version}: the norm of the gradient is {found}"
        raise NotFinite(message, retryable=False)
    limit = adam.section.max_norm
    scale = limit / found if found > limit else 1.0
    oom_guard("a step", lambda: adam.step(sums.floats(), scale=scale))
    sums.clear()
    return StepReport(
        version=version + 1,
        gradient_norm=found,
        is_clipped=found > limit,
        lr=adam.section.lr,
        step_s=perf_counter() - began,
    )


class DeviceState:
    """What a trainer holds on its device: sums, an optimizer if it has one, and weights."""

    def __init__(self, sums: GradientSums, adam: Adam | None, weights: OffloadableWeights) -> None:
        self._sums = sums
        self._weights = weights
        self._state: list[Offloadable] = [sums] if adam is None else [sums, adam]

    @property
    def is_resting(self) -> bool:
        return self._sums.is_resting

    def require_awake(self) -> None:
        if self.is_resting:
            raise CellError("the trainer rests: restore it first")

    def offload(self, *, weights: bool) -> None:
        """Sums and optimizer state, on request weights too, leave the device for host memory."""
        for one in self._parts(weights=weights):
            one.offload()
        # Copies run behind the host, which must not read them before they are there.
        synchronize()
        release()

    def reload(self) -> None:
        """Everything is back on the device; OutOfMemory leaves it resting, to be tried again."""
        were_away = self._weights.is_resting
        try:
            oom_guard("restoring a trainer", self._restore)
        except OutOfMemory:
            self.offload(weights=were_away)
            raise

    def _restore(self) -> None:
        for one in self._parts(weights=True):
            one.reload()

    def _parts(self, *, weights: bool) -> list[Offloadable]:
        return [*self._state, self._weights] if weights else self._state


@contextmanager
def arithmetic(*, deterministic: bool) -> Iterator[None]:
    """Kernels that give the same bits each time, where they are asked for."""
    was = torch.get_deterministic_debug_mode()
    if deterministic:
        # Without it CUDA's matrix products are refused; it must stand before the first of them.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(was)
