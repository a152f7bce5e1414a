"""What a recorded run had come to: its scheduler, and what the components need to go on.

Rule 1: facts go in, and the orders that follow from them; nothing is decided or done here.
Rule 2: what was ordered and not answered is found as such, because only the journal has it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    Command,
    EnterTraining,
    EvaluationEnded,
    EvaluationRequested,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LaunchEvaluation,
    LaunchExecution,
    MoveExecutions,
    OfferGroup,
    OpenBatch,
    Published,
    RunStarted,
    StepTaken,
)
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import EngineId, GroupId
from gyre.types.outcomes import Outcome
from gyre.types.run_events import (
    CallsDamaged,
    ClaimScored,
    EvaluationRound,
    EvaluationScored,
    ExecutionRelaunched,
    GroupDrawn,
    RewardGiven,
    StepMade,
    WeightsPublished,
)
from gyre.types.training import Score

_OF_EVALUATION = (
    RunStarted,
    Published,
    EvaluationRequested,
    EvaluationEnded,
    EvaluationScored,
    EvaluationRound,
)


@dataclass(slots=True)
class RecoveredExecution:
    """An execution as the journal leaves it."""

    engine: EngineId | None = None
    """Where its calls go; None of one that was not launched."""
    name: str | None = None
    """The one it was launched again under, if it was."""
    is_cancelled: bool = False
    is_terminated: bool = False
    is_rewarded: bool = False
    """Its reward was given, whether or not it was closed with it."""
    score: float | None = None
    outcome: Outcome | None = None
    """None until it is closed."""


@dataclass(slots=True)
class RecoveredGroup:
    """A group as the journal leaves it."""

    admitted: AdmitGroup
    members: list[RecoveredExecution]
    task: str | None = None
    """None where the journal does not say which one was drawn."""
    is_answered: bool = False
    """Whether the order that admitted it was."""
    offered: OfferGroup | None = None

    @property
    def running(self) -> Iterator[tuple[int, EngineId]]:
        """Members that were launched and have not terminated, with their engines."""
        for number, one in enumerate(self.members):
            if one.engine is not None and not one.is_terminated:
                yield number, one.engine


@dataclass(slots=True)
class RecoveredStep:
    """A batch as the journal leaves it, with its groups in the order in which it pulled them."""

    groups: list[GroupId] = field(default_factory=list)
    scores: dict[tuple[str, ...], tuple[Score, ...]] = field(default_factory=dict)
    """Of its claims, by the executions that each one holds."""
    gradient_norm: float | None = None


@dataclass(frozen=True, slots=True)
class ConsumedGroups:
    """The groups of a step that was taken."""

    groups: tuple[GroupId, ...]


class RecoveredState:
    """A run that was recorded up to some fact; one whose first fact is missing has not begun."""

    def __init__(self, shape: SchedulerConfig, *, since: int = 0) -> None:
        """Of steps before version `since` nothing is kept, because a checkpoint covers them."""
        self.since = since
        self.scheduler = Scheduler(shape)
        self.groups: dict[GroupId, RecoveredGroup] = {}
        """All that no checkpoint covers, outstanding or consumed."""
        self.drawing: list[AdmitGroup | OfferGroup | ConsumedGroups] = []
        """In order: queries are drawn by the first kind and back with the last (SPEC 1.1)."""
        self.steps: dict[int, RecoveredStep] = {}
        """Those that were taken, by number."""
        self.open: tuple[int, RecoveredStep] | None = None
        """The batch in hand."""
        self.damaged: set[str] = set()
        """Executions whose calls cannot be read."""
        self.evaluating: list[Any] = []
        """Facts and orders that concern held-out evaluation, in order."""
        self.has_started = False
        self._digests: dict[int, str] = {}

    @property
    def version(self) -> int:
        """The trainer's."""
        return self.scheduler.burst.version

    @property
    def published(self) -> int:
        return self.scheduler.burst.published

    @property
    def digest(self) -> str | None:
        """Of the weights that were published last, where that was written down.

        One that was written down and not published, because its writer died, counts for nothing.
        """
        return self._digests.get(self.published)

    @property
    def outstanding(self) -> Iterator[RecoveredGroup]:
        """Groups whose executions have not all closed, in the order of their numbers."""
        return (group for group in self.groups.values() if group.offered is None)

    def record(self, fact: Any, now: float) -> None:
        """The next entry of the journal."""
        if isinstance(fact, _OF_EVALUATION):
            self.evaluating.append(fact)
        self._note(fact)
        if isinstance(fact, EVENTS):
            self._decide(fact, now)

    def _decide(self, event: Any, now: float) -> None:
        for order in self.scheduler.handle(event, now):
            self._ordered(order)

    def _note(self, fact: Any) -> None:
        match fact:
            case RunStarted():
                self.has_started = True
            case GroupDrawn(group=group, task=task):
                self.groups[GroupId(group)].task = task
            case GroupAdmitted(group=group) if group in self.groups:
                self.groups[group].is_answered = True
            case ExecutionRelaunched(group=group, member=member, execution=name):
                if found := self._member(group, member):
                    found.name = name
            case RewardGiven(group=group, member=member, score=score):
                if found := self._member(group, member):
                    found.is_rewarded, found.score = True, score
            case ExecutionTerminated(group=group, member=member):
                if found := self._member(group, member):
                    found.is_terminated = True
            case ExecutionClosed(group=group, member=member, outcome=outcome):
                found = self._member(group, member)
                if found is not None and found.outcome is None:
                    found.outcome = outcome
            case _:
                self._note_training(fact)

    def _note_training(self, fact: Any) -> None:
        match fact:
            case GroupAssigned(group=group, step=step):
                if self.open is not None and self.open[0] == step:
                    batch = self.open[1]
                    if group not in batch.groups:
                        batch.groups.append(group)
            case ClaimScored(step=step, executions=executions, scores=scores):
                if self.open is not None and self.open[0] == step:
                    self.open[1].scores[executions] = scores
            case CallsDamaged(execution=name):
                self.damaged.add(name)
            case StepMade(step=step, gradient_norm=norm):
                if self.open is not None and self.open[0] == step:
                    self.open[1].gradient_norm = norm
            case StepTaken(step=step) if self.open is not None and self.open[0] == step:
                self._stepped(step, self.open[1])
            case WeightsPublished(version=version, digest=digest):
                self._digests[version] = digest
            case _:
                pass

    def _stepped(self, step: int, batch: RecoveredStep) -> None:
        self.open = None
        self.drawing.append(ConsumedGroups(tuple(batch.groups)))
        if step >= self.since:
            self.steps[step] = batch
            return
        for group in batch.groups:
            del self.groups[group]

    def _ordered(self, order: Command) -> None:
        match order:
            case AdmitGroup(group=group, size=size):
                self.drawing.append(order)
                self.groups[group] = RecoveredGroup(
                    order, [RecoveredExecution() for _ in range(size)]
                )
            case LaunchExecution(group=group, member=member, engine=engine):
                self.groups[group].members[member].engine = engine
            case CancelExecution(group=group, member=member):
                self.groups[group].members[member].is_cancelled = True
            case MoveExecutions() | EnterTraining():
                for move in order.moves:
                    self.groups[move.group].members[move.member].engine = move.engine
                self.evaluating += order.evaluations
            case LaunchEvaluation():
                self.evaluating.append(order)
            case OfferGroup(group=group):
                self.drawing.append(order)
                self.groups[group].offered = order
            case OpenBatch(step=step):
                self.open = step, RecoveredStep()
            case _:
                pass

    def _member(self, group: int, member: int) -> RecoveredExecution | None:
        """None of a group that a checkpoint covers: a late fact of it is known already."""
        found = self.groups.get(GroupId(group))
        return None if found is None else found.members[member]


def recover(
    shape: SchedulerConfig, facts: Iterable[tuple[float, Any]], *, since: int = 0
) -> RecoveredState:
    """The run that these facts, with their times, are the journal of."""
    found = RecoveredState(shape, since=since)
    for now, fact in facts:
        found.record(fact, now)
    return found
