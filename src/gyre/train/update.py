"""What every trainer does alike: one step from a sum, and the same bits each time on request."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from time import perf_counter

import torch

from gyre.train.gradients import GradientSums
from gyre.train.optimizer import Adam
from gyre.train.room import with_room
from gyre.words.errors import CellError, NotFinite
from gyre.words.reports import StepReport


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
    found = norm()
    if not isfinite(found):
        message = f"step from version {version}: the norm of the gradient is {found}"
        raise NotFinite(message, retryable=False)
    limit = adam.section.max_norm
    scale = limit / found if found > limit else 1.0
    with_room("a step", lambda: adam.step(sums.flats, scale=scale))
    sums.clear()
    return StepReport(
        version=version + 1,
        gradient_norm=found,
        is_clipped=found > limit,
        lr=adam.section.lr,
        step_s=perf_counter() - began,
    )


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
