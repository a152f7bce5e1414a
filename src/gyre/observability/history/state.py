"""A run as its journal leaves it at the last recorded fact, and its steps and cells so far.

Rule 1: a fact is taken in at a cost that does not grow with the run, and what is kept grows with
steps, faults and changes of roles alone, so that a run can be shown by its own controller.
Rule 2: the scheduler's state is learnt by telling its events to another scheduler, so that the
state cannot disagree with the run; a simulated run's events are enough.
Rule 3: a fact that comes twice, as after a resume, counts once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gyre.journal.journal import Resumed
from gyre.observability.history.cells import FleetStates, Intervals
from gyre.observability.history.faults import FaultHistory
from gyre.observability.history.steps import StepHistory
from gyre.observability.resource_use import UsageSample, used
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import Phase
from gyre.scheduler.messages import (
    Command,
    EnterTraining,
    Event,
    ExecutionTerminated,
    OpenBatch,
    StepTaken,
    TransitionFailed,
)
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.types.outcomes import Ending
from gyre.types.run_events import EvaluationRound, EvaluationScored, RunEnded, UseMeasured

_EVENTS = frozenset(EVENTS)


class Publication(NamedTuple):
    """A publication: from then on the engines serve these weights."""

    at_s: float
    version: int
    ready: int
    """Groups that were ready then; their mean is R."""


class RunState:
    """A run up to the last fact that was recorded."""

    def __init__(self, shape: SchedulerConfig, *, name: str = "run") -> None:
        self.shape = shape
        self.name = name
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
        self.endings: Counter[Ending] = Counter()
        """Of executions, but for those that were closed with their group before they began."""
        self.fleet = FleetStates(self.scheduler)
        self.steps = StepHistory(shape)
        self.faults = FaultHistory()
        self.scored: set[int] = set()
        """Held-out evaluations that were closed since the last round."""
        self.use: UsageSample | None = None
        """As it was measured last."""

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

    @property
    def version(self) -> int:
        """Updates taken."""
        return self.scheduler.burst.version

    @property
    def published(self) -> int:
        """The version that engines serve."""
        return self.scheduler.burst.published

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.scheduler.stopped is not None

    @property
    def reason(self) -> str | None:
        """Why it is over; None of one that is not."""
        stopped = self.scheduler.stopped
        if self.ended is not None:
            return self.ended
        return None if stopped is None else stopped.value

    def _record_event(self, now: float, event: Event) -> Sequence[Command]:
        """Returns what the scheduler answered."""
        scheduler, counts = self.scheduler, self.fleet.counts
        burst, terminated = scheduler.burst, scheduler.counters.terminated
        version, published, void = burst.version, burst.published, scheduler.ledger.void
        num_training = 0
        match event:
            case StepTaken():
                num_training = self.fleet.states.count(CellState.TRAINING)
            case TransitionFailed(cell=cell, transition=transition):
                counts.failed += scheduler.cells.is_current(cell, transition)
            case _:
                pass
        commands = scheduler.handle(event, now)
        self.is_started = True
        self.faults.record_event(now, event, scheduler)
        for command in commands:
            self._record_command(now, command)
        self.fleet.note(now)
        if isinstance(event, ExecutionTerminated) and scheduler.counters.terminated > terminated:
            self.endings[event.ending] += 1
        if burst.version > version:
            num_void = scheduler.ledger.void - void
            self.steps.taken(now, scheduler, num_training=num_training, num_void=num_void)
        if burst.published > published:
            self.publications.append(Publication(now, burst.published, burst.ready))
        self._note_phase(now)
        return commands

    def _record_command(self, now: float, command: Command) -> None:
        self.fleet.counts.record_command(command)
        self.faults.record_command(now, command)
        match command:
            case EnterTraining(cell=cell):
                self.entered.append((now, cell))
            case OpenBatch():
                self.opened_s.append(now)
            case _:
                pass

    def _record_fact(self, now: float, fact: object) -> None:
        self.fleet.record_fact(now, fact)
        self.steps.record_fact(now, fact)
        self.faults.record_fact(now, fact)
        match fact:
            case EvaluationScored(evaluation=number):
                self.scored.add(number)
            case EvaluationRound():
                self.scored.clear()
            case UseMeasured() if fact.seconds > 0:
                num = len(self.fleet.capacities)
                self.use = used(now, fact, self.fleet.spans, num=num)
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
