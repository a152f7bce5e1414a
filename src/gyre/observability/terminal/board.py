"""A run as the terminal shows it, from the facts of its journal one by one.

Rule 1: the scheduler's state is learnt by telling its events to another scheduler, so that the
board cannot disagree with the run.
Rule 2: a fact that comes twice, as after a resume, counts once.
"""

from collections.abc import Iterable, Iterator, Mapping

from gyre.journal.reader import Resumed
from gyre.observability.history.cells import CellSpan, DemandLevel, StepSummary, Tally
from gyre.observability.resource_use import UsageSample, used
from gyre.observability.staleness import in_the_long_run
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    Command,
    EnterTraining,
    Event,
    ExecutionTerminated,
    LeaveReason,
    LeaveTraining,
    MoveExecutions,
    RunStarted,
    TransitionFailed,
)
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.scheduler.staleness import Identity
from gyre.types.ids import CellId
from gyre.types.outcomes import Outcome
from gyre.types.run_events import (
    RUN_EVENTS,
    ClaimTrained,
    EvaluationRound,
    EvaluationScored,
    GroupPacked,
    RewardGiven,
    RunEnded,
    StepMade,
    TransitionTimed,
    UseMeasured,
    WeightsPublished,
)

JOURNAL_EVENTS: tuple[type, ...] = (*EVENTS, *RUN_EVENTS)
"""Facts that a board takes in; it passes over all others."""
MOST_LEVELS = 2048
"""Points of the waterlevel that a board keeps, evenly thinned."""


class RunBoard:
    """A run's state and counts up to the last recorded fact, for the terminal."""

    def __init__(self, shape: SchedulerConfig, *, name: str = "run") -> None:
        self.shape = shape
        self.name = name
        self.scheduler = Scheduler(shape)
        self.now = 0.0
        """Of the last fact."""
        self.is_started = False
        self.ended: str | None = None
        """Why, once the run has said so, and until it goes on."""
        self.steps: list[StepSummary] = []
        self.tally = Tally()
        self.transitions: dict[int, TransitionTimed] = {}
        self.publications: dict[int, WeightsPublished] = {}
        """By version."""
        self.held_out: dict[int, EvaluationRound] = {}
        """Rounds of held-out evaluation, by version."""
        self.held_out_since: dict[int, EvaluationScored] = {}
        """Evaluations that were closed since the last round, by number."""
        self.use: UsageSample | None = None
        """As it was measured last."""
        self.orders: list[Command] = []
        """What the last event led to."""
        self.levels: list[DemandLevel] = []
        self._stride = 1
        self._until_level = 0
        self._states = list(self.states)
        self._since_s = [0.0] * shape.num_cells
        self._spans: list[list[CellSpan]] = [[] for _ in range(shape.num_cells)]
        self._made: StepMade | None = None
        self._packed: dict[int, GroupPacked] = {}
        self._trained: dict[int, ClaimTrained] = {}
        self._scores: dict[tuple[int, int], float] = {}

    # Facts

    def record(self, now: float, fact: object) -> None:
        """Takes in the next fact of the journal; raises InternalError where it cannot be."""
        if isinstance(fact, Event):
            self._record_event(now, fact)
        else:
            self._record_fact(now, fact)
        self.now = max(self.now, now)

    def record_all(self, facts: Iterable[tuple[float, object]]) -> None:
        for now, fact in facts:
            self.record(now, fact)

    def _record_event(self, now: float, event: Event) -> None:
        scheduler = self.scheduler
        version, terminated = self.version, scheduler.counters.terminated
        ages, groups = scheduler.staleness.consumed, scheduler.staleness.histogram.total()
        training = self.num_in(CellState.TRAINING)
        is_current = isinstance(event, TransitionFailed) and self._is_current(event)
        self.orders = scheduler.handle(event, now)
        self._note_states(now)
        for order in self.orders:
            self._note_order(order)
        match event:
            case RunStarted():
                self.is_started = True
            case ExecutionTerminated(ending=ending) if scheduler.counters.terminated > terminated:
                self.tally.endings[ending] += 1
            case TransitionFailed():
                self.tally.failed += is_current
            case _:
                pass
        if self.version > version:
            consumed = scheduler.staleness.histogram.total() - groups
            self._step(now, (scheduler.staleness.consumed - ages) / consumed, training)
        self._note_level(now)

    def _record_fact(self, now: float, fact: object) -> None:
        match fact:
            case RewardGiven(score=score) if score is not None:
                self._scores[fact.group, fact.member] = score
            case GroupPacked():
                self._packed[fact.group] = fact
            case ClaimTrained():
                self._trained[fact.claim] = fact
            case StepMade():
                self._made = fact
            case WeightsPublished():
                self.publications[fact.version] = fact
            case EvaluationScored():
                self.held_out_since[fact.evaluation] = fact
            case EvaluationRound():
                self.held_out[fact.version] = fact
                self.held_out_since.clear()
            case TransitionTimed():
                self.transitions[fact.transition] = fact
            case UseMeasured() if fact.seconds > 0:
                num = self.shape.num_cells + len(self.shape.standalone_capacities)
                self.use = used(now, fact, self._spans_in, num=num)
            case RunEnded(reason=reason):
                self.ended = reason
            case Resumed():
                self.ended = None
            case _:
                pass

    def _is_current(self, event: TransitionFailed) -> bool:
        return self.scheduler.cells.is_current(event.cell, event.transition)

    def _note_order(self, order: Command) -> None:
        match order:
            case EnterTraining(moves=moves):
                self.tally.entered += 1
                self.tally.executions_moved += len(moves)
            case MoveExecutions(moves=moves):
                self.tally.executions_moved += len(moves)
            case LeaveTraining(reason=reason):
                self.tally.left += 1
                self.tally.rescues += reason is LeaveReason.RESCUE
            case _:
                pass

    def _note_states(self, now: float) -> None:
        for cell, (before, state) in enumerate(zip(self._states, self.states, strict=True)):
            if state is before:
                continue
            self._end_span(cell, now)
            self.tally.turned_back += (before, state) == (CellState.ENTERING, CellState.LEAVING)
            self._states[cell], self._since_s[cell] = state, now

    def _end_span(self, cell: int, now: float) -> None:
        span = CellSpan(start_s=self._since_s[cell], end_s=now, state=self._states[cell])
        if span.end_s > span.start_s:
            self._spans[cell].append(span)

    def _step(self, now: float, staleness: float, training: int) -> None:
        step = self.version - 1
        made = self._made if self._made is not None and self._made.step == step else None
        self.steps.append(
            StepSummary(
                number=self.version,
                at_s=now,
                took_s=now - (self.steps[-1].at_s if self.steps else 0.0),
                staleness=staleness,
                num_training=training,
                identity=self.identity,
                made=made,
            )
        )
        if made is not None:
            self.tally.claims.update(made.claims)
        for claim in self._trained.values():
            if claim.step == step:
                self.tally.claim_s[claim.cell] += claim.seconds
        for group in self._packed.values():
            if group.step == step:
                self.tally.trajectories += group.num_trajectories
                self.tally.tokens += group.num_tokens
                self.tally.row_tokens += group.row_tokens
                self.tally.targets += group.num_targets
        self._trained.clear()
        self._packed.clear()
        self._scores.clear()

    def _note_level(self, now: float) -> None:
        """Keeps every so many-th level, and half of them when they become too many."""
        if self._until_level:
            self._until_level -= 1
            return
        self._until_level = self._stride - 1
        self.levels.append(
            DemandLevel(at_s=now, waterlevel=self.waterlevel, capacity=self.capacity)
        )
        if len(self.levels) >= MOST_LEVELS:
            self.levels = self.levels[::2]
            self._stride *= 2

    # What is seen

    @property
    def version(self) -> int:
        """Updates taken."""
        return self.scheduler.burst.version

    @property
    def published(self) -> int:
        """The version that engines serve."""
        return self.scheduler.burst.published

    @property
    def states(self) -> tuple[CellState, ...]:
        """Of the cells, core first."""
        cells = self.scheduler.cells
        return tuple(cells.state(cell) for cell in cells)

    def num_in(self, state: CellState) -> int:
        return sum(one is state for one in self.states)

    def spans(self, cell: CellId | int) -> list[CellSpan]:
        """The cell's states without gaps, the present one up to the last fact."""
        last = CellSpan(start_s=self._since_s[cell], end_s=self.now, state=self._states[cell])
        return [*self._spans[cell], *([last] if last.end_s > last.start_s else [])]

    def _spans_in(self, cell: int, since_s: float, until_s: float) -> Iterator[CellSpan]:
        """Its states in a window that ends now; a standalone engine serves for all of it."""
        if cell >= self.shape.num_cells:
            yield CellSpan(start_s=since_s, end_s=until_s, state=CellState.SERVING)
            return
        yield CellSpan(
            start_s=max(self._since_s[cell], since_s), end_s=until_s, state=self._states[cell]
        )
        for span in reversed(self._spans[cell]):
            if span.end_s <= since_s:
                return
            yield CellSpan(start_s=max(span.start_s, since_s), end_s=span.end_s, state=span.state)

    @property
    def waterlevel(self) -> int:
        """As the rules see it (SPEC 2.1)."""
        return self.scheduler.waterlevel

    @property
    def capacity(self) -> int:
        """C_R: executions that the engines are meant for which serve now."""
        return self.scheduler.engines.capacity

    @property
    def full_capacity(self) -> int:
        """C_R with every cell at home; what only trains never counts."""
        serving = self.shape.num_cells if self.shape.placement.cells_serve else 0
        return self.shape.standalone_capacity + serving * self.shape.cell_capacity

    @property
    def running(self) -> int:
        return self.scheduler.counters.running

    @property
    def queued(self) -> int:
        """Dispatched and not launched."""
        return self.scheduler.counters.queued

    @property
    def num_assigned(self) -> int:
        """Groups that the batch has."""
        return len(self.scheduler.burst.assigned)

    @property
    def num_ready(self) -> int:
        """Groups that are ready and in no batch."""
        return self.scheduler.burst.ready

    @property
    def rewards(self) -> list[float]:
        """Of steps that have one, in order."""
        return [step.reward for step in self.steps if step.reward is not None]

    @property
    def scores_since(self) -> tuple[float, ...]:
        """Rewards given since the last step."""
        return tuple(self._scores.values())

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """Executions closed, by what they closed as."""
        return self.scheduler.ledger.outcomes

    @property
    def staleness(self) -> float | None:
        """Mean over consumed groups."""
        return self.scheduler.staleness.mean

    @property
    def predicted_staleness(self) -> float | None:
        return in_the_long_run(self.shape, self.scheduler.staleness)

    @property
    def identity(self) -> Identity:
        return self.scheduler.staleness.identity(self.version)

    @property
    def step_s(self) -> float | None:
        """Mean time of a step so far."""
        return self.steps[-1].at_s / len(self.steps) if self.steps else None

    def left_s(self, now: float) -> float | None:
        """Until the last step, if all that are left take the mean time; None if that is unknown."""
        if self.shape.steps is None or self.step_s is None:
            return None
        since_s = max(0.0, now - self.steps[-1].at_s)
        # A step that takes longer than the mean is taken to be about to end.
        left = self.shape.steps - self.version
        return max(0.0, left * self.step_s - min(since_s, self.step_s))

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.scheduler.stopped is not None
