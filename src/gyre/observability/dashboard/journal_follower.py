"""Runs that are watched: each journal followed as it grows, and added to its history.

Rule 1: nothing is written and nothing is locked, so that watching cannot disturb a run.
"""

import asyncio
import time
from pathlib import Path

from gyre.cluster.procfs import lock_holder
from gyre.journal.reader import JournalFollower, path_of
from gyre.observability.history.run import RunHistory
from gyre.observability.terminal.board import JOURNAL_EVENTS
from gyre.scheduler.replay import shape_of
from gyre.storage import call_log
from gyre.types.errors import ConfigError, InternalError, LogDamaged

LOOK_S = 0.25
"""How often a journal is looked at."""
ALIVE_S = 1.0
"""How often it is asked who writes it."""
AT_ONCE = 1000
"""Entries that are recorded before other tasks have their turn."""
KEYS = "abcdefgh"
"""Names of runs in addresses."""

Mark = tuple[int, int, str, str | None]
"""How much of a run is known, and how it stands."""


class FollowedRun:
    """One run, up to what its journal held when it was last looked at."""

    def __init__(self, place: Path, *, key: str, waits: bool = False) -> None:
        """`place` is a run's folder, or a journal as `gyre simulate --journal` writes it.

        One that `waits` may have no journal yet.
        """
        self.key = key
        self.place = place
        self.folder = place if place.is_dir() else None
        """Where its call logs are; None of a journal alone."""
        path = path_of(place) if place.is_dir() else place
        if not path.is_file() and not waits:
            raise ConfigError(f"{place}: expected the folder of a run, or a journal")
        self._waits = waits
        self._following = JournalFollower(path, kinds=JOURNAL_EVENTS)
        self._generation = 0
        self._asked_s: float | None = None
        self._has_writer = False
        self.history: RunHistory | None = None
        """None before the journal has a header."""
        self.sequence = 0
        """Entries recorded."""
        self.problem: str | None = None
        """Why no more entries are recorded."""
        self._changed = asyncio.Condition()
        self._read = asyncio.Event()

    @property
    def name(self) -> str:
        header = self._following.header
        return self.place.name if header is None else header.run

    @property
    def seed(self) -> int | None:
        header = self._following.header
        return None if header is None else header.seed

    @property
    def started_at(self) -> float | None:
        """Seconds of the calendar."""
        header = self._following.header
        return None if header is None else header.started_at

    @property
    def is_simulated(self) -> bool:
        header = self._following.header
        return header is not None and header.notes.get("simulated") is True

    @property
    def state(self) -> str:
        if self.history is None or not self.history.is_started:
            return "starting" if self._has_writer or self._waits else "silent"
        if self.history.is_over:
            return "ended"
        return "running" if self._has_writer else "silent"

    @property
    def mark(self) -> Mark:
        """Another one whenever there is something new."""
        return (self._generation, self.sequence, self.state, self.problem)

    @property
    def ended(self) -> str | None:
        """Why it is over."""
        if self.history is None or not self.history.is_over:
            return None
        stopped = self.history.scheduler.stopped
        return self.history.ended or (None if stopped is None else stopped.value)

    def log_of(self, execution: str) -> Path | None:
        """Its call log; None where the run keeps none."""
        if self.folder is None or "/" in execution:
            return None
        return self.folder / "executions" / f"{execution}{call_log.SUFFIX}"

    def is_held_out(self, execution: str) -> bool:
        """Whether it is one of held-out evaluation, which nothing is trained on."""
        held_out = () if self.history is None else self.history.held_out.rows.values()
        return any(evaluation.name == execution for evaluation in held_out)

    def has_tree(self, execution: str | None) -> bool:
        path = None if execution is None else self.log_of(execution)
        return path is not None and path.is_file()

    async def wait_read(self) -> None:
        """Returns when all that the journal held at first is recorded."""
        await self._read.wait()

    async def wait_news(self, mark: Mark) -> None:
        """Returns when there is something that was not there at the mark."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.mark != mark)

    async def follow(self) -> None:
        """Looks for news until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Records all that the journal holds, unless it makes no run."""
        before = self.mark
        self._ask()
        if self.problem is None:
            try:
                await self._take_news()
            except (ConfigError, LogDamaged, InternalError) as error:
                self.problem = str(error)
        self._read.set()
        if before != self.mark:
            async with self._changed:
                self._changed.notify_all()

    def _ask(self) -> None:
        """A simulated run has no writer."""
        now = time.monotonic()
        if self._asked_s is None or now - self._asked_s >= ALIVE_S:
            self._asked_s = now
            self._has_writer = lock_holder(self._following.path) is not None

    async def _take_news(self) -> None:
        if self._waits and not self._following.path.exists():
            return
        self._waits = False
        entries = await asyncio.to_thread(self._following.news)
        header = self._following.header
        if header is None:
            return
        if self.history is None or self._following.generation != self._generation:
            self._generation = self._following.generation
            self.history, self.sequence = RunHistory(shape_of(header.shape)), 0
        for at, entry in enumerate(entries):
            if at and at % AT_ONCE == 0:
                await asyncio.sleep(0)
            self.history.record(entry.now, entry.event)
            self.sequence += 1


def watched(places: list[Path], *, waits: bool = False) -> dict[str, FollowedRun]:
    """By key, in the order in which they were named; the same place twice is one run."""
    unique = list(dict.fromkeys(places))
    if len(unique) > len(KEYS):
        raise ConfigError(f"{len(unique)} runs: expected at most {len(KEYS)}")
    return {
        key: FollowedRun(place, key=key, waits=waits)
        for key, place in zip(KEYS, unique, strict=False)
    }
