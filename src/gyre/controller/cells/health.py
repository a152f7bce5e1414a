"""Polls cells and engines: declares engines lost, cells dead, and finds engines that are slow.

Who does not answer: processes that end, cells that fall silent, engines that stop serving.

Rule 1: silence costs an engine its calls after SILENT_S, its process after a lease (SPEC 3.2).
Rule 2: an engine that is home and says it is not ready for longer than any load takes costs its
process too, because it would refuse every call, and its transition would wait forever.
Rule 3: nothing is recorded twice of one process.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from gyre.cell.client import CellClient
from gyre.cluster.liveness import SilenceTimer
from gyre.controller.cells.clients import CellClients
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.proxy.client import ShardedProxyClient
from gyre.scheduler.messages import EngineLost
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import CellError
from gyre.types.ids import EngineId, EngineName
from gyre.types.run_events import EngineSlow

LOOK_S = 5.0
"""How often the proxy is asked."""
WINDOW_S = 30.0
"""Engines are compared by what they did within so long."""
ENOUGH_S = 5.0
"""Of calls in flight, added up, without which an engine's pace says nothing."""
SLOW = 10.0
"""Times its peers' median."""


@dataclass(slots=True)
class _Window:
    busy_s: float = 0.0
    num_tokens: int = 0

    @property
    def token_s(self) -> float | None:
        """None of an engine that had too little to do."""
        return self.busy_s / max(1, self.num_tokens) if self.busy_s >= ENOUGH_S else None


class TokenRates:
    """Seconds per token of each engine, call by call, over one window after the other."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        self._tokens: dict[int, int] = {}
        self._looked_at: float | None = None
        self._since = 0.0
        self._slow: set[int] = set()

    def look(self, now: float, found: Mapping[int, tuple[int, int]]) -> list[EngineSlow]:
        """By engine: calls in flight, and tokens so far; slow ones, each recorded once."""
        if self._looked_at is None:
            self._since = now
        else:
            self._add(now - self._looked_at, found)
        self._looked_at = now
        self._tokens = {engine: tokens for engine, (_, tokens) in found.items()}
        if now - self._since < WINDOW_S:
            return []
        self._since = now
        windows, self._windows = self._windows, {}
        return self._compared(windows)

    def _add(self, seconds: float, found: Mapping[int, tuple[int, int]]) -> None:
        for engine, (in_flight, tokens) in found.items():
            window = self._windows.setdefault(engine, _Window())
            window.busy_s += seconds * in_flight
            # Another proxy begins to count anew.
            window.num_tokens += max(0, tokens - self._tokens.get(engine, tokens))

    def _compared(self, windows: Mapping[int, _Window]) -> list[EngineSlow]:
        paces = {engine: one.token_s for engine, one in windows.items()}
        known = {engine: pace for engine, pace in paces.items() if pace is not None}
        slow = []
        for engine, pace in known.items():
            peers = [one for other, one in known.items() if other != engine]
            if not peers or pace < SLOW * median(peers):
                self._slow.discard(engine)
            elif engine not in self._slow:
                self._slow.add(engine)
                slow.append(EngineSlow(engine=engine, token_s=pace, peers_token_s=median(peers)))
        return slow


class SlowEngineDetector:
    """Asks the proxy for token rates and records engines that are far slower than their peers."""

    def __init__(self, loop: RunLoop, cells: CellClients, proxy: ShardedProxyClient) -> None:
        self._loop = loop
        self._cells = cells
        self._proxy = proxy
        self._paces = TokenRates()

    async def work(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            work = await self._proxy.work_of_engines()
            names: dict[EngineName, int] = {one.engine: cell for cell, one in self._cells.items()}
            found = {names[name]: one for name, one in work.items() if name in names}
            for fact in self._paces.look(clock(), found):
                self._loop.record(fact)


BEAT_S = 1.0
"""How often cells are asked how they are."""
SILENT_S = 15.0
"""An engine that does not say for so long that it is ready is taken for lost."""


class HealthMonitor:
    """Polls every cell and standalone engine; records engines that are lost and cells that died."""

    def __init__(
        self,
        loop: RunLoop,
        scheduler: Scheduler,
        cells: CellClients,
        cell_processes: CellProcesses,
        coordinator: TrainingCoordinator,
        *,
        lease_s: float,
        drain_s: float,
    ) -> None:
        """`drain_s` is how long an engine that should serve may say that it is not ready."""
        self._loop = loop
        self._scheduler = scheduler
        self._cells = cells
        self._cell_processes = cell_processes
        self._coordinator = coordinator
        self._lease_s = lease_s
        self._drain_s = drain_s
        self._heard_at: dict[CellClient, float] = {}
        self._ready_at: dict[CellClient, float] = {}
        self._reported: set[CellClient] = set()
        """Whose engine is known to be lost."""
        self._gone: set[CellClient] = set()
        self._draining: dict[CellClient, SilenceTimer] = {}
        """Engines that are not ready and should be."""

    def follow(self, cell: int) -> None:
        """Its present process, which is up, to its end."""
        client = self._cells[cell]
        # It may have been given up while it was restarted, when its cell was dead already.
        self._gone.discard(client)
        self._cells.forget_death(client)
        self._heard_at[client] = self._loop.now
        self._loop.spawn(self._follow(cell, client))

    async def work(self) -> None:
        """Asks on and on."""
        while True:
            await asyncio.sleep(BEAT_S)
            await self.ask()

    async def ask(self) -> None:
        """Asks every cell once, and acts on the answers."""
        clients = dict(self._cells)
        answers = await asyncio.gather(*(self._beat(cell) for cell in clients.values()))
        now = self._loop.now
        self._forget(set(clients.values()))
        for (cell, client), is_ready in zip(clients.items(), answers, strict=True):
            if is_ready is not None:
                self._heard_at[client] = now
                self._coordinator.beat(cell)
            if is_ready or self._coordinator.trains(cell):
                self._ready_at[client] = now
                self._reported.discard(client)
            if is_ready or self._coordinator.trains(cell) or not self._scheduler.is_home(cell):
                self._draining.pop(client, None)
            else:
                self._draining.setdefault(client, SilenceTimer(self._drain_s))
            if self._cells[cell] is client:
                self._judge(cell, client, now)
        for cell in self._coordinator.silent():
            self._cells.report_death(self._cells[cell], self._loop)

    async def _beat(self, client: CellClient) -> bool | None:
        """Whether its engine is ready; None without an answer."""
        try:
            async with asyncio.timeout(self._lease_s):
                return (await client.health()).engine_ready
        except (CellError, TimeoutError):
            return None

    def _judge(self, cell: int, client: CellClient, now: float) -> None:
        if client not in self._heard_at:
            return  # Its process is yet to start, and the restarter knows how it is.
        drained = self._draining.get(client)
        is_silent = now - self._heard_at[client] >= self._lease_s
        if is_silent or (drained is not None and drained.is_over(now)):
            self._lost(cell, client)
        elif (
            now - self._ready_at.setdefault(client, now) >= SILENT_S
            and client not in self._reported
        ):
            self._reported.add(client)
            self._loop.record(EngineLost(engine=EngineId(cell)))

    async def _follow(self, cell: int, client: CellClient) -> None:
        if await self._cell_processes.ended(cell):
            self._lost(cell, client)

    def _lost(self, cell: int, client: CellClient) -> None:
        """Its process is gone, or worth nothing."""
        if client in self._gone:
            return
        self._gone.add(client)
        if cell < self._cell_processes.num_cells:
            self._cells.report_death(client, self._loop)
        else:
            # The transition that loads weights into it finds it gone, and restarts it.
            self._loop.spawn(self._cell_processes.end(cell))
            self._loop.record(EngineLost(engine=EngineId(cell)))

    def _forget(self, present: set[CellClient]) -> None:
        for known in (self._heard_at, self._ready_at, self._draining):
            for client in known.keys() - present:
                del known[client]
        self._reported &= present
        self._gone &= present
