"""A run's history, built from its journal, which answers for any moment of the run.

Rule 1: a fact is taken in at a cost that does not grow with the run, and rows are only added.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from gyre.observability.history.cells import FleetLoad, at_of
from gyre.observability.history.executions import ExecutionHistory, HeldOutHistory
from gyre.observability.history.state import Publication, RunState
from gyre.observability.resource_use import UsageSample
from gyre.scheduler import policies
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import Phase
from gyre.scheduler.messages import Command, Event
from gyre.types.run_events import UseMeasured


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


class RunHistory(RunState):
    """The history of a run up to the last fact that was recorded."""

    def __init__(self, shape: SchedulerConfig, *, name: str = "run") -> None:
        super().__init__(shape, name=name)
        self.work = ExecutionHistory(shape)
        self.held_out = HeldOutHistory()
        self.load = FleetLoad(self.scheduler, self.fleet.capacities)
        self.uses: list[UsageSample] = []
        """What was measured of processors and devices."""
        self.levels: list[RunCounts] = [self._level(0.0)]

    def level_at(self, at_s: float) -> RunCounts:
        """The counts at a moment, after all that happened in it."""
        return self.levels[self.num_levels(at_s) - 1]

    def num_levels(self, at_s: float) -> int:
        """Rows up to a moment; there is one from the beginning."""
        return max(1, bisect_right(self.levels, at_s, key=at_of))

    def publications_until(self, at_s: float) -> list[Publication]:
        return self.publications[: bisect_right(self.publications, at_s, key=at_of)]

    def _record_event(self, now: float, event: Event) -> Sequence[Command]:
        commands = super()._record_event(now, event)
        self.work.record_event(now, event)
        self.held_out.record_event(now, event, published=self.published)
        for command in commands:
            self.work.record_command(now, command)
            self.held_out.record_command(now, command)
        self.load.note(now)
        self._note_level(now)
        return commands

    def _record_fact(self, now: float, fact: object) -> None:
        super()._record_fact(now, fact)
        self.work.record_fact(fact)
        self.held_out.record_fact(now, fact)
        self.load.record_fact(now, fact)
        if isinstance(fact, UseMeasured) and fact.seconds > 0 and self.use is not None:
            self.uses.append(self.use)

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
    return policies.supply(ready=level.ready, needed=shape.groups_per_batch - level.assigned)
