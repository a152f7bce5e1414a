"""Restarts dead cells with back-off, and brings their weights up to date."""

import asyncio
from collections import Counter
from time import perf_counter

from gyre.cell.client import CellClient
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.clients import CellClients
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.model.checkpoint_store import Checkpoint
from gyre.types.errors import CellError, ConfigError, GyreError
from gyre.types.ids import CORE
from gyre.types.run_events import CellRestarted

MOST_STARTS = 5
"""Of one cell in a row that come to nothing."""
WELL_S = 10.0
"""A process that lives on for so long after it is well has come to something."""


class RestartBackoff:
    """Counts starts in a row, by cell: each waits twice as long as the one before it."""

    def __init__(self) -> None:
        self._num_starts: Counter[int] = Counter()
        self._well_since: dict[int, float] = {}

    def begin(self, cell: int, now: float) -> float | None:
        """Seconds to wait before this start; None when there were too many."""
        since = self._well_since.pop(cell, None)
        if since is not None and now - since >= WELL_S:
            del self._num_starts[cell]
        self._num_starts[cell] += 1
        number = self._num_starts[cell]
        if number > MOST_STARTS:
            return None
        return 0.0 if number == 1 else 2.0 ** (number - 2)

    def attempt(self, cell: int) -> int:
        """Starts in a row before the present one."""
        return max(0, self._num_starts[cell] - 1)

    def well(self, cell: int, now: float) -> None:
        """What was started does its work."""
        self._well_since[cell] = now


class CellRestarter:
    """Starts the process of a dead cell again, until it is well or was started too often."""

    def __init__(
        self,
        loop: RunLoop,
        cells: CellClients,
        cell_processes: CellProcesses,
        coordinator: TrainingCoordinator,
        checkpointer: Checkpointer,
        *,
        lease_s: float,
    ) -> None:
        self._loop = loop
        self._cells = cells
        self._cell_processes = cell_processes
        self._coordinator = coordinator
        self._checkpointer = checkpointer
        self._lease_s = lease_s
        self._restarts = RestartBackoff()

    def is_cell(self, engine: int) -> bool:
        """And no standalone engine."""
        return engine < self._cell_processes.num_cells

    def is_hopeless(self, engine: int, seconds: float) -> bool:
        """An engine that took no weights for so long does not do so by waiting."""
        return self._cell_processes.is_over(engine) or seconds > self._lease_s

    async def end(self, cell: int) -> None:
        """Its process is gone for certain."""
        await self._cell_processes.end(cell)

    async def revived(self, cell: int) -> int:
        """The version that its engine serves, verified by digest; CellError if there is no hope."""
        last: GyreError | OSError | None = None
        while True:
            wait_s = self._restarts.begin(cell, self._loop.now)
            if wait_s is None:
                raise self._hopeless(cell, last)
            await asyncio.sleep(wait_s)
            try:
                version = await self._tried(cell)
            except (CellError, ConfigError, OSError) as error:
                # Its plan may find the disk full, which passes.
                last = error
            else:
                self._restarts.well(cell, self._loop.now)
                return version

    def _hopeless(self, cell: int, last: GyreError | OSError | None) -> CellError:
        why = f"and ended within {WELL_S:g} s" if last is None else f"in vain: {last}"
        message = (
            f"cell {cell}: started {MOST_STARTS} times {why}; see {self._cell_processes.log(cell)}"
        )
        return CellError(message, retryable=False)

    async def _tried(self, cell: int) -> int:
        began = perf_counter()
        # Gone for certain, so that there are never two of one cell, nor two who write checkpoints.
        await self.end(cell)
        published = self._checkpointer.published
        first: Checkpoint | None = published
        if cell == CORE:
            first = await self._checkpointer.to_begin_from(self._coordinator.version)
        with self._checkpointer.using(published.version if first is None else first.version):
            client = await self._cell_processes.start_again(cell, first)
        self._cells[cell] = client
        health = await client.health()
        self._loop.record(
            CellRestarted(
                cell=cell,
                attempt=self._restarts.attempt(cell),
                trainer_version=health.trainer_version,
                seconds=perf_counter() - began,
            )
        )
        if cell == CORE:
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
