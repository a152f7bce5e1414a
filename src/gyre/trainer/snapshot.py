"""A trainer's state in main memory, copied beside its work, so that it can be written meanwhile.

Rule 1: the state changes within `changing` alone, which waits for a copy that is under way.
Rule 2: the memory is kept for the next copy, so that there are never two of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from gyre.model.network import Network
from gyre.trainer.offload import oom_guard
from gyre.trainer.optimizer import MASTER, OptimizerState
from gyre.types.errors import CheckpointError


class HasState(Protocol):
    """The part of a trainer that a snapshot copies."""

    network: Network
    version: int

    @property
    def has_optimizer(self) -> bool: ...

    def export(self) -> OptimizerState: ...


class Snapshot:
    """The copy in main memory, and the lock of the threads that copy or change the state."""

    def __init__(self, trainer: HasState) -> None:
        self.stalled_s = 0.0
        """That changes have waited for the last copy."""
        self.copied_s = 0.0
        """That the last copy took."""
        self._trainer = trainer
        self._dtype = next(trainer.network.module.parameters()).dtype
        self._turn = Lock()
        self._num_steps: int | None = None
        self._held: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._has_state = False
        """Whether the last copy was of all, and not of weights alone."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """No copy is made meanwhile."""
        began = perf_counter()
        with self._turn:
            self.stalled_s += perf_counter() - began
            yield

    def copy(self, version: int, *, weights_only: bool = False) -> None:
        """The state of this version is in main memory; of a trainer without moments its weights.

        Weights alone are a sixth of it or less. CheckpointError where the trainer is at another
        version by now.
        """
        with self._turn:
            if self._trainer.version != version:
                found = f"the trainer has version {self._trainer.version}"
                message = f"a checkpoint of version {version}: {found} by now"
                raise CheckpointError(message, retryable=False)
            self.stalled_s = 0.0
            began = perf_counter()
            self._has_state = self._trainer.has_optimizer and not weights_only
            oom_guard("copying a checkpoint", self._copy)
            self.copied_s = perf_counter() - began

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What was copied of the weights, in the network's type, in the order of names."""
        if not self._has_state:
            yield from sorted(self._weights.items())
            return
        for name, one in _masters(self._held):
            yield name, one.to(self._dtype)

    def state(self) -> OptimizerState:
        """What was copied of the optimizer."""
        if not self._has_state or self._num_steps is None:
            message = "no optimizer was copied: the core's trainer has one"
            raise CheckpointError(message, retryable=False)
        return OptimizerState(num_steps=self._num_steps, tensors=self._held)

    @torch.no_grad()
    def _copy(self) -> None:
        trainer = self._trainer
        if not trainer.has_optimizer:
            weights = dict(trainer.network.module.named_parameters())
            _fetched(weights, self._weights, self._dtype)
            return
        # Weights are the masters, rounded; the network may hold what an engine has loaded.
        state = trainer.export()
        self._num_steps = state.num_steps
        if self._has_state:
            _fetched(state.tensors, self._held, None)
        else:
            _fetched(dict(_masters(state.tensors)), self._weights, self._dtype)


def _masters(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Of an optimizer's state the weights, in the order of names."""
    prefix = f"{MASTER}/"
    for name, one in sorted(tensors.items()):
        if name.startswith(prefix):
            yield name.removeprefix(prefix), one


def _fetched(
    source: Mapping[str, Tensor], held: dict[str, Tensor], dtype: torch.dtype | None
) -> None:
    """In main memory, in that type or in their own; memory is made once, and pinned."""
    if not held:
        pinned = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        # All of it or nothing, so that a memory that was full once may have room the next time.
        held |= {
            name: torch.empty_like(one, dtype=dtype, device="cpu", pin_memory=pinned)
            for name, one in source.items()
        }
    devices = {one.device for one in source.values() if one.is_cuda}
    if not devices:
        for name, one in source.items():
            held[name].copy_(one)
    for device in devices:
        _fetch(device, source, held)


def _fetch(device: torch.device, source: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    """On a stream of its own, so that the copy runs beside the kernels that come after it."""
    stream = _stream(device)
    # What was asked of the device before, the last step among it, is done first.
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for name, one in source.items():
            # Rounded there, if at all: fewer bytes are to go.
            held[name].copy_(one.to(held[name].dtype), non_blocking=True)
    stream.synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all copies, because the allocator keeps memory for each stream by itself."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
