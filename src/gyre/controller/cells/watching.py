"""Who does not answer: processes that end, cells that fall silent, engines that stop serving.

Rule 1: silence costs an engine its calls after SILENT_S, its process after a lease (SPEC 3.2).
Rule 2: an engine that is home and says it is not ready for longer than any load takes costs its
process too, because it would refuse every call, and whoever waits for it would wait forever.
Rule 3: nothing is said twice of one process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from gyre.aio.chores import Spawn
from gyre.cell.client import CellClient
from gyre.cluster.liveness import SilenceTimer
from gyre.controller.cells.pacing import SlowEngineDetector
from gyre.controller.training.hall import TrainingCoordinator
from gyre.scheduler.messages import CellDied, EngineLost
from gyre.types.errors import CellError
from gyre.types.ids import CellId, EngineId

BEAT_S = 1.0
"""How often cells are asked how they are."""
SILENT_S = 15.0
"""An engine that does not say for so long that it is ready is taken for lost."""


class HealthMonitor:
    """Asks every cell and standalone engine how it is, for as long as the run lasts."""

    def __init__(
        self,
        cells: Mapping[int, CellClient],
        hall: TrainingCoordinator,
        *,
        num_cells: int,
        lease_s: float,
        drain_s: float,
        ended: Callable[[int], Awaitable[bool]],
        end: Callable[[int], Coroutine[Any, Any, None]],
        hear: Callable[[Any], None],
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        """`ended` waits for a process that ends by itself; `end` makes one do so.

        `drain_s` is how long an engine that should serve may say that it is not ready.
        """
        self._cells = cells
        self._hall = hall
        self._num_cells = num_cells
        self._lease_s = lease_s
        self._drain_s = drain_s
        self._ended = ended
        self._end = end
        self._hear = hear
        self._clock = clock
        self._spawn = spawn
        self._heard_at: dict[CellClient, float] = {}
        self._ready_at: dict[CellClient, float] = {}
        self._told: set[CellClient] = set()
        """Whose engine is known to be lost."""
        self._gone: set[CellClient] = set()
        self._draining: dict[CellClient, SilenceTimer] = {}
        """Engines that are not ready and should be."""
        self.paces: SlowEngineDetector
        self.is_home: Callable[[int], bool]
        """Whether the scheduler has the cell's engine, or the standalone one, for serving."""

    def follow(self, cell: int) -> None:
        """Its present process, which is up, to its end."""
        client = self._cells[cell]
        self._heard_at[client] = self._clock()
        self._spawn(self._follow(cell, client))

    async def work(self) -> None:
        """Asks on and on, and looks at the paces of engines meanwhile."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.paces.work())
            while True:
                await asyncio.sleep(BEAT_S)
                await self.ask()

    async def ask(self) -> None:
        """Everybody once, and what follows from the answers."""
        clients = dict(self._cells)
        answers = await asyncio.gather(*(self._beat(one) for one in clients.values()))
        now = self._clock()
        self._forget(set(clients.values()))
        for (cell, client), is_ready in zip(clients.items(), answers, strict=True):
            if is_ready is not None:
                self._heard_at[client] = now
                self._hall.beat(cell)
            if is_ready or self._hall.trains(cell):
                self._ready_at[client] = now
                self._told.discard(client)
            if is_ready or self._hall.trains(cell) or not self.is_home(cell):
                self._draining.pop(client, None)
            else:
                self._draining.setdefault(client, SilenceTimer(self._drain_s))
            if self._cells[cell] is client:
                self._judge(cell, client, now)
        for cell in self._hall.silent():
            self._hear(CellDied(cell=CellId(cell)))

    async def _beat(self, client: CellClient) -> bool | None:
        """Whether its engine is ready; None without an answer."""
        try:
            async with asyncio.timeout(self._lease_s):
                return (await client.health()).engine_ready
        except (CellError, TimeoutError):
            return None

    def _judge(self, cell: int, client: CellClient, now: float) -> None:
        if client not in self._heard_at:
            return  # Its process is yet to start, and whoever starts it knows how it is.
        drained = self._draining.get(client)
        is_silent = now - self._heard_at[client] >= self._lease_s
        if is_silent or (drained is not None and drained.is_over(now)):
            self._lost(cell, client)
        elif now - self._ready_at.setdefault(client, now) >= SILENT_S and client not in self._told:
            self._told.add(client)
            self._hear(EngineLost(engine=EngineId(cell)))

    async def _follow(self, cell: int, client: CellClient) -> None:
        if await self._ended(cell):
            self._lost(cell, client)

    def _lost(self, cell: int, client: CellClient) -> None:
        """Its process is gone, or worth nothing."""
        if client in self._gone:
            return
        self._gone.add(client)
        if cell < self._num_cells:
            self._hear(CellDied(cell=CellId(cell)))
        else:
            # Whoever loads weights into it finds it gone, and starts another.
            self._spawn(self._end(cell))
            self._hear(EngineLost(engine=EngineId(cell)))

    def _forget(self, present: set[CellClient]) -> None:
        for known in (self._heard_at, self._ready_at, self._draining):
            for client in known.keys() - present:
                del known[client]
        self._told &= present
        self._gone &= present
