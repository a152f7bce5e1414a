"""A trainer's state in main memory: offloaded while its cell serves, or copied for a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from time import perf_counter
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gyre.model.network import Network
from gyre.trainer.optimizer import MASTER, OptimizerState
from gyre.types.errors import CheckpointError, OutOfMemory


class Offloadable(Protocol):
    """Something that can leave its device and come back; doing either twice does it once."""

    def offload(self) -> None: ...

    def reload(self) -> None: ...


class OffloadableWeights:
    """The parameters of a network, which stay the same objects wherever their values are."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._home = network.device
        self._hosts: list[Tensor] = []
        self.is_resting = False

    @torch.no_grad()
    def offload(self) -> None:
        if self.is_resting:
            return
        parameters = list(self._network.module.parameters())
        if self._home.type != "cpu":
            # Kept once made, because pinning memory takes longer than copying into it.
            self._hosts = self._hosts or [
                torch.empty_like(one, device="cpu", pin_memory=True) for one in parameters
            ]
            for host, one in zip(self._hosts, parameters, strict=True):
                host.copy_(one, non_blocking=True)
                one.data = host
        self.is_resting = True

    @torch.no_grad()
    def reload(self) -> None:
        """Back on the device; if it has no room, all of them stay where they rest."""
        if not self.is_resting:
            return
        if self._home.type != "cpu":
            parameters = list(self._network.module.parameters())
            made = [torch.empty_like(one, device=self._home) for one in parameters]
            for one, new in zip(parameters, made, strict=True):
                new.copy_(one, non_blocking=True)
                one.data = new
        self.is_resting = False


_ON_CPU = "DefaultCPUAllocator"
"""How torch says it of main memory, for which it has no type of its own."""

Made = TypeVar("Made")


def oom_guard(doing: str, work: Callable[[], Made]) -> Made:
    """What `work` returns; raises OutOfMemory where the device has no room for it."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not is_memory and _ON_CPU not in str(error):
            raise
        said = (str(error) or "no main memory is left").splitlines()[0]
    # Raised here and not above, because an error's cause holds on to every tensor in its frames.
    release()
    raise OutOfMemory(f"{doing}: {said}")


def release() -> None:
    """Memory that torch keeps for later goes back to the device, for others to use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def synchronize() -> None:
    """What was asked of any device is done: that of a cell need not be the thread's current one."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            # Others are left alone, because waiting for one makes it part of this process.
            if torch.cuda.memory_reserved(number):
                torch.cuda.synchronize(number)


class HasState(Protocol):
    """The part of a trainer that a snapshot copies."""

    network: Network
    version: int

    @property
    def has_optimizer(self) -> bool: ...

    def export(self) -> OptimizerState: ...


class Snapshot:
    """The state's copy in main memory, from which a checkpoint is written beside training.

    Rule 1: the state changes within `changing` alone, which waits for a copy that is under way.
    Rule 2: the memory is kept for the next copy, so that there are never two of them.
    """

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
