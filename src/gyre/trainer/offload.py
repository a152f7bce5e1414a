"""Offload to host memory; out-of-memory handling."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gyre.model.network import Network
from gyre.types.errors import OutOfMemory


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
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and _ON_CPU not in str(error):
            raise
        said = str(error).splitlines()[0]
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
