"""Weights of a trainer that other cells take, and those that it takes of them."""

from collections.abc import Mapping
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from gyre.cell.cell_weights import exposed_in_lanes, fetched, shapes_of, whole_cuts, withdraw
from gyre.cell.protocol import ExposedWeights
from gyre.model.lending import IpcExport, IpcMemory, read
from gyre.model.network import Network
from gyre.trainer.room import oom_guard
from gyre.types.errors import ExposureGone, TransferError
from gyre.types.ports import Transport


class HasWeights(Protocol):
    """A trainer, as far as its weights go."""

    network: Network
    version: int

    @property
    def is_resting(self) -> bool: ...


class WeightPublisher:
    """One version at a time, in a copy: in main memory, or on the device where cells lend that."""

    def __init__(self, trainer: HasWeights, transport: Transport, memory: IpcMemory | None) -> None:
        self._trainer = trainer
        self._transport = transport
        self._memory = memory
        self._cuts = whole_cuts(shapes_of(trainer.network.module))
        self._lock = Lock()
        self._exposed: ExposedWeights | None = None
        self._loan: IpcExport | None = None
        self._is_resting = trainer.is_resting
        """From before the trainer rests until it has its memory again: it lends nothing then."""

    def expose(self) -> ExposedWeights:
        """The weights as they are; the version before is withdrawn."""
        with self._lock:
            version, before = self._trainer.version, self._exposed
            if self._is_resting and self._memory is not None:
                # The network is the engine's now, whatever version the trainer has.
                raise ExposureGone("the trainer rests: its weights are not on the device")
            if before is not None and before.version == version:
                return before
            self._withdraw()
            made = self._made(version)
            self._exposed = made
            if self._trainer.version != version:
                self._withdraw()
                raise ExposureGone("the weights changed while they were exposed")
            return made

    def offload(self) -> None:
        """What is lent of the device's memory is free; nobody takes weights of one that rests."""
        with self._lock:
            self._is_resting = True
            self._end_loan()

    def reload(self) -> None:
        """The network is the trainer's again."""
        with self._lock:
            self._is_resting = False

    def changed(self) -> None:
        """The weights are of another version; a copy of the old on the device is of no use."""
        with self._lock:
            self._end_loan()

    def taken(self, given: ExposedWeights) -> Mapping[str, Tensor]:
        """Those of another cell, on the device, where they are checked in no time."""
        network = self._trainer.network
        if given.lent is None:
            return fetched(
                self._transport,
                given.parts,
                self._cuts,
                version=given.version,
                device=network.device,
            )
        if self._memory is None:
            message = "expected weights in main memory, found them on a device"
            raise TransferError(message, retryable=False)
        made = {name: torch.empty_like(one) for name, one in self._named()}
        read(self._memory, given.lent, list(made.values()))
        return made

    def _made(self, version: int) -> ExposedWeights:
        memory = self._memory
        if memory is None:
            tensors = dict(self._named())
            parts = exposed_in_lanes(self._transport, tensors, self._cuts, version=version)
            return ExposedWeights(version=version, parts=parts)
        loan = oom_guard(
            "lending weights", lambda: memory.lend([one.clone() for _, one in self._named()])
        )
        self._loan = loan
        return ExposedWeights(version=version, lent=loan.lent)

    def _named(self) -> list[tuple[str, Tensor]]:
        return sorted(
            (name, one.detach()) for name, one in self._trainer.network.module.named_parameters()
        )

    def _end_loan(self) -> None:
        if self._loan is not None:
            self._withdraw()

    def _withdraw(self) -> None:
        before, self._exposed = self._exposed, None
        loan, self._loan = self._loan, None
        if loan is not None:
            loan.end()
        if before is not None:
            withdraw(self._transport, before.parts)
