"""A run read from its journal, on from where it was left each time.

Rule 1: nothing is written and nothing is locked, so that looking cannot disturb a run.
"""

from pathlib import Path
from typing import Generic, TypeVar

from gyre.cluster.process import lock_holder
from gyre.journal.journal import Header, JournalEntry, JournalFollower, path_of
from gyre.observability.history.state import RunState
from gyre.scheduler.replay import JOURNAL_EVENTS, shape_of
from gyre.types.errors import ConfigError

Run = TypeVar("Run", bound=RunState)


class RunFollower(Generic[Run]):
    """A journal, and the run that its entries are recorded on."""

    def __init__(self, place: Path, kind: type[Run], *, waits: bool = False) -> None:
        """`place` is a run's folder, or a journal as `gyre simulate --journal` writes it.

        One that `waits` may have no journal yet.
        """
        self.place = place
        self.folder = place if place.is_dir() else None
        """Where its call logs are; None of a journal alone."""
        self.path = path_of(place) if place.is_dir() else place
        if not self.path.is_file() and not waits:
            raise ConfigError(f"{place}: expected the folder of a run, or a journal")
        self._kind = kind
        self._journal = JournalFollower(self.path, kinds=JOURNAL_EVENTS)
        self.run: Run | None = None
        """None before the journal has a header."""
        self.generation = 0
        """How often all that was recorded became void."""

    @property
    def header(self) -> Header | None:
        return self._journal.header

    @property
    def name(self) -> str:
        return self.place.name if self.header is None else self.header.run

    def read(self) -> list[JournalEntry]:
        """Entries since the last time; may be called on a thread of its own."""
        return self._journal.news()

    def current(self) -> Run | None:
        """The run to record on what was read: another one where that is all there is."""
        if self.header is None:
            return None
        if self.run is None or self.generation != self._journal.generation:
            self.generation = self._journal.generation
            self.run = self._kind(shape_of(self.header.shape), name=self.header.run)
        return self.run

    def catch_up(self) -> Run:
        """The run with all of the journal; raises ConfigError where nothing is recorded."""
        entries = self.read()
        run = self.current()
        if run is None:
            raise ConfigError(f"{self.path}: nothing is recorded yet")
        run.record_all((entry.now, entry.event) for entry in entries)
        return run

    def writer(self) -> int | None:
        """The process that works on the run; a simulated one has none."""
        return lock_holder(self.path)
