"""The books of a live run's scheduler: every event and every order of it, checked as they come."""

from traceback import extract_tb

from tests.scheduler.support.world import World

from gyre.scheduler.messages import (
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    Published,
    RunStarted,
)

NAMES = {
    "_check_counters": "I1",
    "_check_ages": "I3",
    "_check_entering": "I4",
    "_check_room": "I4",
    "_launched": "I4",
    "_sit": "I4",
    "_stepped": "I2",
    "_check_ledgers": "ledgers",
}
"""By function of the books, the invariant that it stands for."""


def invariant_of(error):
    """Which one an assertion of the books belongs to."""
    names = [frame.name for frame in extract_tb(error.__traceback__)]
    return next((NAMES[name] for name in reversed(names) if name in NAMES), "books")


class LiveBooks(World):
    """The world of the scheduler's own tests, told by somebody else what happened."""

    def __init__(self, shape):
        self._shape = shape
        self.scheduler = None
        self.num_events = 0

    def decided(self, scheduler, now, event, orders):
        """An event was heard, and this was ordered because of it."""
        if isinstance(event, RunStarted) and self.scheduler is None:
            self._open(scheduler)
        self.scheduler = scheduler
        if self.stopped is not None:
            assert not orders, "orders after the end of the run"
            return
        self.now = now
        self.num_events += 1
        self._settle(event)
        before = self._note_event(event)
        self.log = [(event, now, orders)]
        self._obey(orders, before)
        if self.stopped is None:
            self._check_counters()
            self._check_ages()
            self._check()

    def _check_counters(self):
        counters, books = self.scheduler.counters, self.books
        found = counters.dispatched, counters.launched, counters.terminated
        assert (books.d, books.p, books.f) == found
        assert 0 <= counters.terminated <= counters.launched <= counters.dispatched

    def _check_ages(self):
        found = self.scheduler.staleness.identity(self.books.version)
        assert sum(self.books.staleness) == found.consumed
        assert found.holds

    def counted(self, group):
        """Members of a group whose rewards count."""
        return sorted(self.books.groups[group]["counted"])

    def is_void(self, group):
        return self.books.groups[group]["void"]

    def _open(self, scheduler):
        """As World begins, with nothing told yet."""
        tell, World.tell = World.tell, lambda self, event: []
        try:
            super().__init__(self._shape, scheduler)
        finally:
            World.tell = tell

    def _settle(self, event):
        """What the event answers is owed no more."""
        match event:
            case GroupAdmitted(group=group) if group in self.admissions:
                self.admissions.remove(group)
            case ExecutionTerminated(group=group, member=member):
                if (group, member) in self.running:
                    self.running.remove((group, member))
            case GroupAssigned(group=group) if group in self.offered:
                self.offered.remove(group)
            case Published():
                self.publish = None
            case _:
                pass
