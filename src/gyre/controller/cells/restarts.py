"""Restarts dead cells with back-off, and brings their weights up to date."""

import asyncio
from time import perf_counter

from gyre.cell.client import CellClient
from gyre.controller.cells.cell import MOST_STARTS, WELL_S, Cell
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.model.checkpoint_store import Checkpoint
from gyre.types.errors import CellError, ConfigError, GyreError
from gyre.types.ids import CORE
from gyre.types.run_events import CellRestarted


class CellRestarter:
    """Starts the process of a dead cell again, until it is well or was started too often."""

    def __init__(
        self,
        loop: RunLoop,
        cell_processes: CellProcesses,
        coordinator: TrainingCoordinator,
        checkpointer: Checkpointer,
        *,
        lease_s: float,
    ) -> None:
        self._loop = loop
        self._cell_processes = cell_processes
        self._coordinator = coordinator
        self._checkpointer = checkpointer
        self._lease_s = lease_s

    def is_hopeless(self, engine: Cell, seconds: float) -> bool:
        """An engine that took no weights for so long does not do so by waiting."""
        return self._cell_processes.is_over(engine.number) or seconds > self._lease_s

    async def end(self, cell: Cell) -> None:
        """Its process is gone for certain."""
        await self._cell_processes.end(cell.number)

    async def revived(self, cell: Cell) -> int:
        """The version that its engine serves, verified by digest; CellError if there is no hope."""
        last: GyreError | OSError | None = None
        while True:
            wait_s = cell.restarts.begin(self._loop.now)
            if wait_s is None:
                raise self._hopeless(cell, last)
            await asyncio.sleep(wait_s)
            try:
                version = await self._tried(cell)
            except (CellError, ConfigError, OSError) as error:
                # Its plan may find the disk full, which passes.
                last = error
            else:
                cell.recovered(self._loop.now)
                return version

    def _hopeless(self, cell: Cell, last: GyreError | OSError | None) -> CellError:
        why = f"and ended within {WELL_S:g} s" if last is None else f"in vain: {last}"
        log = self._cell_processes.log(cell.number)
        message = f"cell {cell.number}: started {MOST_STARTS} times {why}; see {log}"
        return CellError(message, retryable=False)

    async def _tried(self, cell: Cell) -> int:
        began = perf_counter()
        # Gone for certain, so that there are never two of one cell, nor two who write checkpoints.
        await self.end(cell)
        published = self._checkpointer.published
        first: Checkpoint | None = published
        if cell.number == CORE:
            first = await self._checkpointer.to_begin_from(self._coordinator.version)
        with self._checkpointer.using(published.version if first is None else first.version):
            client = await self._cell_processes.start_again(cell.number, first)
        cell.replace(client)
        health = await client.health()
        self._loop.record(
            CellRestarted(
                cell=cell.number,
                attempt=cell.restarts.attempt,
                trainer_version=health.trainer_version,
                seconds=perf_counter() - began,
            )
        )
        if cell.number == CORE:
            await self._replayed(client, health.trainer_version)
        published = self._checkpointer.published
        with self._checkpointer.using(published.version):
            await client.load(published.folder, version=published.version, digest=published.digest)
        return published.version

    async def _replayed(self, core: CellClient, version: int | None) -> None:
        """The core's trainer is where it was, and that is durable before its engine serves."""
        assert version is not None
        if version == self._coordinator.version:
            return
        await core.enter()
        await self._coordinator.replay(core, version)
        await self._checkpointer.made(self._coordinator.version)
        await core.leave(keep_sum=False)
