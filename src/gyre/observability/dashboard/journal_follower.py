"""Runs that are watched: each followed as its journal grows, with who waits for its news."""

import asyncio
import time
from pathlib import Path

from gyre.observability.follower import RunFollower
from gyre.observability.history.run import RunHistory
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


class FollowedRun(RunFollower[RunHistory]):
    """A run on the page, up to what its journal held when it was last looked at."""

    def __init__(self, place: Path, *, key: str, waits: bool = False) -> None:
        """`place` is a run's folder or a journal; one that `waits` may have no journal yet."""
        super().__init__(place, RunHistory, waits=waits)
        self.key = key
        self._waits = waits
        self._asked_s: float | None = None
        self._has_writer = False
        self.history: RunHistory | None = None
        """None before the journal has a header."""
        self.sequence = 0
        """Entries recorded."""
        self.problem: str | None = None
        """Why no more entries are recorded."""
        self._changed = asyncio.Condition()
        self._was_read = asyncio.Event()

    @property
    def seed(self) -> int | None:
        return None if self.header is None else self.header.seed

    @property
    def started_at(self) -> float | None:
        """Seconds of the calendar."""
        return None if self.header is None else self.header.started_at

    @property
    def is_simulated(self) -> bool:
        return self.header is not None and self.header.notes.get("simulated") is True

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
        return (self.generation, self.sequence, self.state, self.problem)

    @property
    def ended(self) -> str | None:
        """Why it is over."""
        return None if self.history is None else self.history.reason

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
        await self._was_read.wait()

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
        self._was_read.set()
        if before != self.mark:
            async with self._changed:
                self._changed.notify_all()

    def _ask(self) -> None:
        now = time.monotonic()
        if self._asked_s is None or now - self._asked_s >= ALIVE_S:
            self._asked_s = now
            self._has_writer = self.writer() is not None

    async def _take_news(self) -> None:
        if self._waits and not self.path.exists():
            return
        self._waits = False
        entries = await asyncio.to_thread(self.read)
        run = self.current()
        if run is None:
            return
        if run is not self.history:
            self.history, self.sequence = run, 0
        for at, entry in enumerate(entries):
            if at and at % AT_ONCE == 0:
                await asyncio.sleep(0)
            run.record(entry.now, entry.event)
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
