"""A run's history, built from its journal, which answers for any moment of the run.

Rule 1: a fact is taken in at a cost that does not grow with the run, and rows are only added.
Rule 2: the scheduler's state is learnt by telling its events to another scheduler, so that the
history cannot disagree with the run; a simulated run's events are enough.
Rule 3: a fact that comes twice, as after a resume, counts once.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from gyre.journal.reader import Resumed
from gyre.observability.history.cells import CellHistory, Intervals
from gyre.observability.history.executions import ExecutionHistory, HeldOutHistory
from gyre.observability.history.faults import FaultHistory
from gyre.observability.history.steps import StepHistory
from gyre.observability.resource_use import UsageSample, used
from gyre.scheduler import rules
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import Phase
from gyre.scheduler.messages import Command, EnterTraining, Event, OpenBatch
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.types.run_events import RunEnded, UseMeasured

_EVENTS = frozenset(EVENTS)


class RunCounts(NamedTuple):
    """The counts of a run from one moment to the next."""

    at_s: float
    version: int
    published: int
    phase: Phase
    is_batch_open: bool
    assigned: int
    """Groups that the batch has."""
    ready: int
    """Groups that are ready and in no batch."""
    waterlevel: int
    """w, as the rules see it."""
    running: int
    queued: int
    evaluations: int
    capacity: int
    """C_R."""
    switching: int
    """Cells on their way into training or home."""
    supply_since_s: float | None
    queued_groups: int
    """Outstanding groups of which nothing was launched."""
    running_groups: int
    assessing_groups: int
    """All of them ended, not all of them closed."""
    trained: int
    """Groups, so far."""
    void: int
    dispatched: int
    """d."""
    launched: int
    """p."""
    terminated: int
    """f."""


class Publication(NamedTuple):
    """A publication: from then on the engines serve these weights."""

    at_s: float
    version: int
    ready: int
    """Groups that were ready then; their mean is R."""


class RunHistory:
    """The history of a run up to the last fact that was recorded."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self.shape = shape
        self.scheduler = Scheduler(shape)
        self.now_s = 0.0
        """Of the last fact."""
        self.is_started = False
        self.ended: str | None = None
        """Why, once the run has said so, and until it goes on."""
        self.entered: list[tuple[float, int]] = []
        """When which cell was sent into training."""
        self.opened_s: list[float] = []
        """When the batch of each step was opened."""
        self.publications: list[Publication] = []
        self.publishing = Intervals()
        """From the last update of a burst until its weights are published."""
        self.publishing_since_s: float | None = None
        self.work = ExecutionHistory(shape)
        self.held_out = HeldOutHistory()
        self.fleet = CellHistory(self.scheduler)
        self.steps = StepHistory(shape)
        self.faults = FaultHistory()
        self.uses: list[UsageSample] = []
        """What was measured of processors and devices."""
        self.levels: list[RunCounts] = [self._level(0.0)]

    def record(self, now: float, fact: object) -> None:
        """Takes in the next fact of the journal; raises InternalError where it cannot be."""
        if type(fact) in _EVENTS:
            self._record_event(now, fact)  # type: ignore[arg-type]
        else:
            self._record_fact(now, fact)
        self.now_s = max(self.now_s, now)

    def record_all(self, facts: Iterable[tuple[float, object]]) -> None:
        for now, fact in facts:
            self.record(now, fact)

    def level_at(self, at_s: float) -> RunCounts:
        """The counts at a moment, after all that happened in it."""
        return self.levels[self.num_levels(at_s) - 1]

    def num_levels(self, at_s: float) -> int:
        """Rows up to a moment; there is one from the beginning."""
        return max(1, bisect_right(self.levels, at_s, key=_at))

    def publications_until(self, at_s: float) -> list[Publication]:
        return self.publications[: bisect_right(self.publications, at_s, key=_at)]

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.scheduler.stopped is not None

    def _record_event(self, now: float, event: Event) -> None:
        scheduler = self.scheduler
        version, published = scheduler.burst.version, scheduler.burst.published
        void = scheduler.ledger.void
        orders = scheduler.handle(event, now)
        self.is_started = True
        self.work.record_event(now, event)
        self.held_out.record_event(now, event, published=published)
        self.faults.record_event(now, event, scheduler)
        for order in orders:
            self._record_command(now, order)
        self.fleet.note(now)
        if scheduler.burst.version > version:
            self.steps.taken(now, scheduler, num_void=scheduler.ledger.void - void)
        if scheduler.burst.published > published:
            burst = scheduler.burst
            self.publications.append(Publication(now, burst.published, burst.ready))
        self._note_phase(now)
        self._note_level(now)

    def _record_command(self, now: float, order: Command) -> None:
        self.work.record_command(now, order)
        self.held_out.record_command(now, order)
        self.faults.record_command(now, order)
        match order:
            case EnterTraining(cell=cell):
                self.entered.append((now, cell))
            case OpenBatch():
                self.opened_s.append(now)
            case _:
                pass

    def _record_fact(self, now: float, fact: object) -> None:
        self.work.record_fact(fact)
        self.held_out.record_fact(now, fact)
        self.fleet.record_fact(now, fact)
        self.steps.record_fact(now, fact)
        self.faults.record_fact(now, fact)
        match fact:
            case UseMeasured() if fact.seconds > 0:
                num = len(self.fleet.capacities)
                self.uses.append(used(now, fact, self.fleet.spans, num=num))
            case RunEnded(reason=reason):
                self.ended = reason
            case Resumed():
                self.ended = None
            case _:
                pass

    def _note_phase(self, now: float) -> None:
        is_over = self.scheduler.burst.phase is Phase.TRAINING
        if self.publishing_since_s is None and not is_over:
            self.publishing_since_s = now
        elif self.publishing_since_s is not None and is_over:
            self.publishing.add(self.publishing_since_s, now)
            self.publishing_since_s = None

    def _note_level(self, now: float) -> None:
        """A row where counts changed; of several rows in one moment only the last stays."""
        level = self._level(now)
        last = self.levels[-1]
        if last[1:] == level[1:]:
            return
        if last.at_s == now:
            self.levels[-1] = level
        else:
            self.levels.append(level)

    def _level(self, now: float) -> RunCounts:
        scheduler = self.scheduler
        burst, counters, groups = scheduler.burst, scheduler.counters, self.work.states
        return RunCounts(
            now,
            burst.version,
            burst.published,
            burst.phase,
            burst.batch_open,
            len(burst.assigned),
            burst.ready,
            scheduler.waterlevel,
            counters.running,
            counters.queued,
            scheduler.num_evaluations,
            scheduler.engines.capacity,
            scheduler.cells.num_switching,
            scheduler.supply_since,
            groups.queued,
            groups.running,
            groups.assessing,
            scheduler.ledger.trained,
            scheduler.ledger.void,
            counters.dispatched,
            counters.launched,
            counters.terminated,
        )


def supply(level: RunCounts, shape: SchedulerConfig) -> int:
    """Ready groups, as far as the batch has use for them (SPEC 2.1)."""
    return rules.supply(ready=level.ready, needed=shape.groups_per_batch - level.assigned)


def _at(row: RunCounts | Publication) -> float:
    return row.at_s
