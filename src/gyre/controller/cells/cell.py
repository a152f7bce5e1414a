"""One object for each cell and standalone engine of a run: its process, and what it does.

Rule 1: what is known of a process belongs to its generation, and the next one begins without it.
Rule 2: nothing is recorded twice of one process.
"""

import asyncio
from dataclasses import dataclass

from gyre.cell.client import CellClient
from gyre.cluster.liveness import SilenceTimer
from gyre.cluster.process import ForkedProcess
from gyre.controller.run_loop import RunLoop
from gyre.scheduler.messages import CellDied, EngineLost
from gyre.types.ids import CellId, EngineId

MOST_STARTS = 5
"""Of one cell in a row that come to nothing."""
WELL_S = 10.0
"""A process that lives on for so long after it is well has come to something."""


class RestartBackoff:
    """Counts starts of one cell in a row: each waits twice as long as the one before it."""

    def __init__(self) -> None:
        self._num_starts = 0
        self._well_since: float | None = None

    def begin(self, now: float) -> float | None:
        """Seconds to wait before this start; None when there were too many."""
        if self._well_since is not None and now - self._well_since >= WELL_S:
            self._num_starts = 0
        self._well_since = None
        self._num_starts += 1
        if self._num_starts > MOST_STARTS:
            return None
        return 0.0 if self._num_starts == 1 else 2.0 ** (self._num_starts - 2)

    @property
    def attempt(self) -> int:
        """Starts in a row before the present one."""
        return max(0, self._num_starts - 1)

    def well(self, now: float) -> None:
        """What was started does its work."""
        self._well_since = now


@dataclass(slots=True)
class ProcessHealth:
    """What the health monitor has heard of one process."""

    heard_at: float | None = None
    """None until the process is followed."""
    ready_at: float | None = None
    """When its engine last served, or its trainer trained."""
    unready: SilenceTimer | None = None
    """While its engine is not ready and should be."""
    is_reported: bool = False
    """Its engine is recorded as lost."""


class Cell:
    """One cell or standalone engine: its process, its transition, and its part in training."""

    def __init__(self, number: int, *, is_standalone: bool = False) -> None:
        self.number = number
        self.is_standalone = is_standalone
        """Standalone engines serve and never train; they are numbered behind the cells."""
        self.process: ForkedProcess | None = None
        """None of one that an earlier controller started, and of one that was ended."""
        self.generation = 0
        """Counts its processes: an answer of an older one says nothing about the present one."""
        self.health = ProcessHealth()
        self.restarts = RestartBackoff()
        self.lock = asyncio.Lock()
        """Held by its transition under way."""
        self.transition: int | None = None
        """The transition that it was ordered last."""
        self.worker: asyncio.Task[None] | None = None
        """Claims micro-steps for its present process."""
        self.num_busy = 0
        """What it has in hand: claims, or weights that it takes."""
        self.num_refusals = 0
        """How often in a row it could not take the core's weights."""
        self.is_pulling = False
        self.is_leaving = False
        """Ordered home: it claims no more."""
        self.is_parked = False
        """It serves, and keeps its part of the batch's sum."""
        self.is_behind = False
        """It takes the core's weights before it claims again. One that is leaving may be, too."""
        self._client: CellClient | None = None
        self._is_dead = False

    @property
    def client(self) -> CellClient:
        """Of its present process; before the first there is none."""
        assert self._client is not None
        return self._client

    def replace(self, client: CellClient) -> None:
        """Another process takes its place, or is the first."""
        self._client = client
        self.generation += 1
        self.health = ProcessHealth()
        self.worker = None
        self.num_refusals = 0
        self._is_dead = False

    def recovered(self, now: float) -> None:
        """Its process is up; what was reported of it before concerned a cell that was dead."""
        self.restarts.well(now)
        self._is_dead = False

    def is_alive(self, generation: int) -> bool:
        """This process is the present one, and is not known to be gone."""
        return self.generation == generation and not self._is_dead

    def report_death(self, generation: int, loop: RunLoop) -> bool:
        """This process is gone or worth nothing; whether that is news.

        Several components notice the same death, which is recorded once, and not of a process that
        another has replaced.
        """
        if not self.is_alive(generation):
            return False
        self._is_dead = True
        if self.is_standalone:
            loop.record(EngineLost(engine=EngineId(self.number)))
        else:
            loop.record(CellDied(cell=CellId(self.number)))
        return True


class RunCells(dict[int, Cell]):
    """The cells of a run by number, and behind them its standalone engines."""

    def __init__(self, num_cells: int, *, num_standalone: int = 0) -> None:
        super().__init__(
            (number, Cell(number, is_standalone=number >= num_cells))
            for number in range(num_cells + num_standalone)
        )
