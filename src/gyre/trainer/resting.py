"""Weights of a network in host memory while its device is used for something else."""

from typing import Protocol

import torch
from torch import Tensor

from gyre.model.network import Network


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
