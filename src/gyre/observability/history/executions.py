"""Executions, groups and evaluations over time."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gyre.observability.history.cells import at_of
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    AdmitGroup,
    Command,
    EnterTraining,
    EvaluationEnded,
    EvaluationRequested,
    Event,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAssigned,
    LaunchEvaluation,
    LaunchExecution,
    MoveExecutions,
    OfferGroup,
)
from gyre.types.ids import evaluation_name
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import EvaluationScored, ExecutionRelaunched, GroupDrawn, RewardGiven


@dataclass(slots=True, kw_only=True)
class AnyExecution:
    """What became of an execution, and when."""

    engine: int | None = None
    """Where its calls go, or went last."""
    launched_s: float | None = None
    ended_s: float | None = None
    ending: Ending | None = None
    closed_s: float | None = None
    outcome: Outcome | None = None
    score: float | None = None

    @property
    def ran_s(self) -> float | None:
        """From launch to termination."""
        if self.launched_s is None or self.ended_s is None:
            return None
        return self.ended_s - self.launched_s


@dataclass(slots=True)
class EvaluationRecord(AnyExecution):
    """One execution of a held-out task; journals say what it closed as, and not how it ended."""

    number: int
    asked_s: float
    version: int
    """Published when it was asked for."""
    execution: str | None = None
    """None until it is scored; one that was stopped begins anew under another name."""
    task: str | None = None
    """None until it is scored."""
    versions: tuple[int, ...] = ()
    """Those that sampled its tokens."""

    @property
    def name(self) -> str:
        return self.execution or evaluation_name(self.number)


class HeldOutHistory:
    """All executions of held-out tasks, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.rows: dict[int, EvaluationRecord] = {}

    def record_event(self, now: float, event: Event, *, published: int) -> None:
        match event:
            case EvaluationRequested(evaluation=number):
                self.rows.setdefault(number, EvaluationRecord(number, now, published))
            case EvaluationEnded(evaluation=number) if number in self.rows:
                if self.rows[number].ended_s is None:
                    self.rows[number].ended_s = now
            case _:
                pass

    def record_command(self, now: float, order: Command) -> None:
        match order:
            case LaunchEvaluation(evaluation=number, engine=engine) if number in self.rows:
                self.rows[number].launched_s, self.rows[number].engine = now, engine
            case EnterTraining(evaluations=moves) | MoveExecutions(evaluations=moves):
                for move in moves:
                    if move.evaluation in self.rows:
                        self.rows[move.evaluation].engine = move.engine
            case _:
                pass

    def record_fact(self, now: float, fact: object) -> None:
        match fact:
            case EvaluationScored(evaluation=number, version=version):
                one = self.rows.setdefault(number, EvaluationRecord(number, now, version))
                if one.closed_s is None:
                    one.closed_s, one.outcome = now, Outcome(fact.outcome)
                one.execution, one.task, one.score = fact.execution, fact.task, fact.score
                one.version, one.versions = version, fact.versions
            case _:
                pass


@dataclass(slots=True)
class ExecutionRecord(AnyExecution):
    """One execution of a group."""

    group: int
    member: int
    name: str | None = None
    """None in a journal without run events."""


@dataclass(slots=True)
class GroupRecord:
    """One group."""

    number: int
    version: int
    """v_d."""
    admitted_s: float
    task: str | None = None
    num_launched: int = 0
    num_ended: int = 0
    ready_s: float | None = None
    is_void: bool = False
    assigned_s: float | None = None
    step: int | None = None
    """That it was pulled for, from 0."""


@dataclass(slots=True)
class GroupStates:
    """Outstanding groups by how far they are; those that are ready the scheduler counts."""

    queued: int = 0
    running: int = 0
    assessing: int = 0


class ExecutionDuration(NamedTuple):
    """Duration and ending of an execution, or of a group's longest one, at the time it ended."""

    at_s: float
    seconds: float
    ending: Ending


@dataclass(slots=True)
class ExecutionHistory:
    """All executions by group and member, and times in order for counting."""

    shape: SchedulerConfig
    attempts: list[ExecutionRecord] = field(default_factory=list)
    """Group-major, as they were dispatched."""
    queries: list[GroupRecord] = field(default_factory=list)
    states: GroupStates = field(default_factory=GroupStates)
    executions: list[ExecutionDuration] = field(default_factory=list)
    """Those that were launched and have ended."""
    longest: list[ExecutionDuration] = field(default_factory=list)
    """Of each group the longest execution, once all have ended; timed out if any did."""
    closed: dict[Outcome, list[float]] = field(
        default_factory=lambda: {outcome: [] for outcome in Outcome}
    )
    """When executions closed, by what they closed as."""
    ended: dict[Ending, list[float]] = field(
        default_factory=lambda: {ending: [] for ending in Ending}
    )
    _counted: dict[int, int] = field(default_factory=dict)
    """Rewards that count, of groups that are not ready yet."""

    def attempt(self, group: int, member: int) -> ExecutionRecord:
        return self.attempts[group * self.shape.group_size + member]

    def members(self, group: int) -> list[ExecutionRecord]:
        size = self.shape.group_size
        return self.attempts[group * size : (group + 1) * size]

    # The scheduler's events and commands

    def record_event(self, now: float, event: Event) -> None:
        match event:
            case ExecutionTerminated():
                self._end(now, self.attempt(event.group, event.member), event.ending)
            case ExecutionClosed():
                self._close(now, self.attempt(event.group, event.member), event.outcome)
            case GroupAssigned(group=group, step=step):
                query = self.queries[group]
                if query.assigned_s is None:
                    query.assigned_s, query.step = now, step
            case _:
                pass

    def record_command(self, now: float, order: Command) -> None:
        match order:
            case AdmitGroup(group=group, version=version, size=size):
                self.queries.append(GroupRecord(group, version, now))
                self.attempts += (ExecutionRecord(group, member) for member in range(size))
                self.states.queued += 1
            case LaunchExecution(group=group, member=member, engine=engine):
                attempt = self.attempt(group, member)
                attempt.launched_s, attempt.engine = now, engine
                self.queries[group].num_launched += 1
                self._note_begin(self.queries[group])
            case EnterTraining(moves=moves) | MoveExecutions(moves=moves):
                for move in moves:
                    self.attempt(move.group, move.member).engine = move.engine
            case OfferGroup(group=group, is_void=is_void):
                self._ready(now, self.queries[group], is_void)
            case _:
                pass

    def record_fact(self, fact: object) -> None:
        """Records a run event; of a group that was never dispatched there is nothing to keep."""
        match fact:
            case GroupDrawn(group=group, task=task, executions=names) if self._knows(group):
                self.queries[group].task = task
                for attempt, name in zip(self.members(group), names, strict=False):
                    attempt.name = name
            case RewardGiven(group=group, member=member) if self._knows(group, member):
                attempt = self.attempt(group, member)
                attempt.name, attempt.score = fact.execution, fact.score
            case ExecutionRelaunched(group=group, member=member) if self._knows(group, member):
                self.attempt(group, member).name = fact.execution
            case _:
                pass

    def _knows(self, group: int, member: int = 0) -> bool:
        return 0 <= group < len(self.queries) and 0 <= member < self.shape.group_size

    def _end(self, now: float, attempt: ExecutionRecord, ending: Ending) -> None:
        if attempt.ended_s is not None:
            return
        attempt.ended_s, attempt.ending = now, ending
        self.ended[ending].append(now)
        if attempt.ran_s is not None:
            self.executions.append(ExecutionDuration(now, attempt.ran_s, ending))
        query = self.queries[attempt.group]
        query.num_ended += 1
        self._note_begin(query)
        if query.num_ended == self.shape.group_size:
            self._all_ended(now, query)

    def _note_begin(self, query: GroupRecord) -> None:
        """Its first execution was launched, or ended without a launch."""
        if query.num_launched + query.num_ended == 1:
            self.states.queued -= 1
            self.states.running += 1

    def _all_ended(self, now: float, query: GroupRecord) -> None:
        self.states.running -= 1
        self.states.assessing += 1
        ran = [member for member in self.members(query.number) if member.ran_s is not None]
        if ran:
            is_late = any(attempt.ending is Ending.TIMED_OUT for attempt in ran)
            ending = Ending.TIMED_OUT if is_late else Ending.COMPLETED
            self.longest.append(
                ExecutionDuration(now, max(attempt.ran_s or 0.0 for attempt in ran), ending)
            )

    def _close(self, now: float, attempt: ExecutionRecord, outcome: Outcome) -> None:
        if attempt.closed_s is not None:
            return
        counted = self._counted.get(attempt.group, 0)
        if counted >= self.shape.executions_per_group:
            outcome = Outcome.SURPLUS
        elif outcome in (Outcome.VALID, Outcome.PLACEHOLDER):
            self._counted[attempt.group] = counted + 1
        attempt.closed_s, attempt.outcome = now, outcome
        self.closed[outcome].append(now)

    def _ready(self, now: float, query: GroupRecord, is_void: bool) -> None:
        """Members that a full group never launched closed with it (SPEC 6.5)."""
        for member in self.members(query.number):
            if member.closed_s is None:
                self._end(now, member, Ending.CANCELLED)
                self._close(now, member, Outcome.SURPLUS)
        self._counted.pop(query.number, None)
        self.states.assessing -= 1
        query.ready_s, query.is_void = now, is_void

    # What is asked

    def outcomes_at(self, at_s: float) -> dict[str, int]:
        return {one.value: bisect_right(times, at_s) for one, times in self.closed.items()}

    def endings_at(self, at_s: float) -> dict[str, int]:
        return {one.value: bisect_right(times, at_s) for one, times in self.ended.items()}

    def until(
        self, rows: list[ExecutionDuration], at_s: float, *, since_s: float = 0.0
    ) -> Iterator[ExecutionDuration]:
        """Rows of a window of time."""
        first = bisect_right(rows, since_s, key=at_of) if since_s > 0 else 0
        yield from rows[first : bisect_right(rows, at_s, key=at_of)]
