"""A trainer's state in main memory, copied beside its work, so that it can be written meanwhile.

Rule 1: the state changes within `changing` alone, which waits for a copy that is under way.
Rule 2: the memory is kept for the next copy, so that there are never two of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from gyre.model.network import Network
from gyre.train.optimizer import MASTER, OptimizerState
from gyre.train.room import with_room
from gyre.words.errors import CheckpointError


class HasState(Protocol):
    """A trainer, as far as its state goes."""

    network: Network
    version: int

    @property
    def has_optimizer(self) -> bool: ...

    def export(self) -> OptimizerState: ...


class Snapshot:
    """The copy, and the turn of whoever copies or changes the state."""

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

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody copies meanwhile."""
        began = perf_counter()
        with self._turn:
            self.stalled_s += perf_counter() - began
            yield

    def copy(self, version: int) -> None:
        """The state of this version is in main memory; of a trainer without moments its weights.

        CheckpointError where the trainer is at another version by now.
        """
        with self._turn:
            if self._trainer.version != version:
                found = f"the trainer has version {self._trainer.version}"
                message = f"a checkpoint of version {version}: {found} by now"
                raise CheckpointError(message, retryable=False)
            self.stalled_s = 0.0
            began = perf_counter()
            with_room("copying a checkpoint", self._copy)
            self.copied_s = perf_counter() - began

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What was copied of the weights, in the network's type, in the order of names."""
        prefix = "" if self._num_steps is None else f"{MASTER}/"
        for name, one in sorted(self._held.items()):
            if name.startswith(prefix):
                yield name.removeprefix(prefix), one.to(self._dtype)

    def state(self) -> OptimizerState:
        """What was copied of the optimizer."""
        if self._num_steps is None:
            raise CheckpointError("this trainer has no optimizer: the core's has", retryable=False)
        return OptimizerState(num_steps=self._num_steps, tensors=self._held)

    @torch.no_grad()
    def _copy(self) -> None:
        trainer = self._trainer
        if trainer.has_optimizer:
            # Weights are the masters, rounded; the network may hold what an engine has loaded.
            state = trainer.export()
            self._num_steps = state.num_steps
            source: Mapping[str, Tensor] = state.tensors
        else:
            source = dict(trainer.network.module.named_parameters())
        if not self._held:
            pinned = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            self._held = {
                name: torch.empty_like(one, device="cpu", pin_memory=pinned)
                for name, one in source.items()
            }
        devices = {one.device for one in source.values() if one.is_cuda}
        if not devices:
            for name, one in source.items():
                self._held[name].copy_(one)
        for device in devices:
            _fetch(device, source, self._held)


def _fetch(device: torch.device, source: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    """On a stream of its own, so that the copy runs beside the kernels that come after it."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # What was asked of the device before, the last step among it, is done first.
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for name, one in source.items():
            held[name].copy_(one, non_blocking=True)
    stream.synchronize()
