"""The state machine of one execution: facts move it forward, each exactly once.

Rule 1: the stages are passed in order, and a fact out of order is refused and moves nothing.
Rule 2: what never started is never assessed, and a score comes from a valid assessment of the
state that was frozen (SPEC 6.1, 6.2).
Rule 3: a step is assessed before the next one starts, and the last one once it is terminated.

The steps of a task: which are there, when the next one may begin, and what they come to.

Rule 1: a step begins when the one before it was scored and reached what it must.
Rule 2: a step that was not reached counts as the lowest score, because a mean of those that were
would pay for not reaching the others.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from statistics import fmean
from typing import assert_never

from gyre.types.errors import ConfigError, InternalError
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import (
    Assessed,
    Assessment,
    Closed,
    Ending,
    Fact,
    Launched,
    Outcome,
    OutcomeRecord,
    Prepared,
    State,
    Status,
    StepAssessed,
    StepEnded,
    StepStarted,
    Terminated,
)
from gyre.types.tasks import Task, TaskStep


class ExecutionStage(IntEnum):
    """How far an execution has come."""

    NEW = 0
    PREPARED = 1
    RUNNING = 2
    TERMINATED = 3
    CLOSED = 4


BEFORE_LAUNCH = {Ending.NEVER_STARTED, Ending.CANCELLED}
"""Endings of what was not launched; NEVER_STARTED also of what was and could not start."""


class DeadlineTimes:
    """When the agent, and then everything, must have ended (SPEC 6.1); monotonic seconds."""

    def __init__(self, *, agent_s: float, overall_s: float) -> None:
        if not (0 < agent_s < overall_s and math.isfinite(overall_s)):
            raise ConfigError(
                f"expected finite deadlines with 0 < agent_s < overall_s, "
                f"found {agent_s} and {overall_s}"
            )
        self._agent_s = agent_s
        self._overall_s = overall_s
        self._held_s = 0.0

    def hold(self, held_s: float) -> None:
        """Calls were held for that long without an engine, all in all; it never shrinks."""
        if math.isfinite(held_s):
            self._held_s = max(self._held_s, held_s)

    def agent_at(self, launched_s: float) -> float:
        return launched_s + self._agent_s + self._held_s

    def overall_at(self, launched_s: float) -> float:
        return launched_s + self._overall_s + self._held_s


Worth = Callable[[Mapping[int, float]], float]
"""The reward that the scores of steps come to, by their numbers."""


def only(scores: Mapping[int, float]) -> float:
    """What counts where a task has no steps."""
    return scores[0]


class Execution:
    """One attempt at a task, in the state that its facts say."""

    def __init__(
        self,
        execution: ExecutionId,
        task: str,
        facts: Iterable[Fact] = (),
        *,
        worth: Worth = only,
    ) -> None:
        self.id = execution
        self.task = task
        self._worth = worth
        self.stage = ExecutionStage.NEW
        self.prepared: Prepared | None = None
        self.launched: Launched | None = None
        self.started: Launched | StepStarted | None = None
        """The last step that was."""
        self.steps: tuple[StepEnded, ...] = ()
        """That others may follow."""
        self.terminated: Terminated | None = None
        self._judged: tuple[StepAssessed, ...] = ()
        self._assessed: tuple[Assessment, ...] = ()
        self.closed: Closed | None = None
        for fact in facts:
            self.apply(fact)

    @property
    def step(self) -> int:
        """The last one that was started, or the first; counted from 0."""
        return self.started.step if isinstance(self.started, StepStarted) else 0

    @property
    def is_running(self) -> bool:
        """Whether its agent is, for all that is known."""
        return self.stage is ExecutionStage.RUNNING and len(self.steps) == self.step

    @property
    def state(self) -> State | None:
        """What may be assessed now."""
        if self.terminated is not None:
            return self.terminated.state
        return self.steps[-1].state if self.steps and not self.is_running else None

    @property
    def assessments(self) -> tuple[Assessment, ...]:
        """Those of the step that was started last, whose state is the one that is kept."""
        judged = (fact.assessment for fact in self._judged if fact.step == self.step)
        return (*judged, *self._assessed)

    @property
    def scores(self) -> dict[int, float]:
        """Of every step that has a valid assessment."""
        found = [(fact.step, fact.assessment.score) for fact in self._judged]
        found += [(self.step, assessment.score) for assessment in self._assessed]
        return {step: score for step, score in found if score is not None}

    @property
    def is_enough(self) -> bool:
        """Whether a step that was judged lets the next one begin."""
        return self._is_valid() and bool(self._judged) and self._judged[-1].is_enough

    @property
    def record(self) -> OutcomeRecord:
        """For the outcome file, once it is terminated."""
        if self.terminated is None:
            raise InternalError(f"execution {self.id} has no outcome while it is {self.stage.name}")
        return OutcomeRecord(
            execution=self.id,
            task=self.task,
            was_launched=self.launched is not None,
            terminated=self.terminated,
            assessments=self.assessments,
            closed=self.closed,
        )

    def apply(self, fact: Fact) -> None:
        """Moves on; InternalError, and no move, if this cannot follow what is known."""
        match fact:
            case Prepared():
                self._expect(fact, self.stage is ExecutionStage.NEW)
                self.prepared, self.stage = fact, ExecutionStage.PREPARED
            case Launched():
                self._expect(fact, self.stage is ExecutionStage.PREPARED)
                self.launched, self.stage = fact, ExecutionStage.RUNNING
                self.started = fact
            case StepStarted():
                self._expect(fact, self._may_start(fact))
                self.started = fact
            case StepEnded():
                self._expect(fact, self.is_running and fact.step == self.step)
                self.steps = (*self.steps, fact)
            case StepAssessed():
                may = self.terminated is None and fact.step == self.step
                self._expect(fact, may and self._may_assess(fact.assessment))
                self._judged = (*self._judged, fact)
            case Terminated():
                self._expect(fact, self._may_terminate(fact))
                self.terminated, self.stage = fact, ExecutionStage.TERMINATED
            case Assessed(assessment=assessment):
                may = self.terminated is not None
                self._expect(fact, may and self._may_assess(assessment))
                self._assessed = (*self._assessed, assessment)
            case Closed():
                self._expect(
                    fact, self.stage is ExecutionStage.TERMINATED and self._may_close(fact)
                )
                self.closed, self.stage = fact, ExecutionStage.CLOSED
            case _:
                assert_never(fact)

    def _expect(self, fact: Fact, holds: bool) -> None:
        if not holds:
            raise InternalError(f"execution {self.id} is {self.stage.name} and heard {fact}")

    def _may_start(self, fact: StepStarted) -> bool:
        return (
            self.stage is ExecutionStage.RUNNING
            and not self.is_running
            and fact.step == self.step + 1
            and self.is_enough
        )

    def _may_terminate(self, fact: Terminated) -> bool:
        if fact.ending is Ending.NEVER_STARTED and (self.steps or fact.state is not None):
            return False
        if self.stage is ExecutionStage.RUNNING:
            return self.is_running or fact.state in (None, self.state)
        return (
            self.stage < ExecutionStage.RUNNING
            and fact.ending in BEFORE_LAUNCH
            and fact.state is None
        )

    def _may_assess(self, assessment: Assessment) -> bool:
        return (
            self.stage < ExecutionStage.CLOSED
            and self.state is not None
            and self.state.reference == assessment.reference
            and assessment.attempt == len(self.assessments) + 1
            and not self._is_valid()
        )

    def _is_valid(self) -> bool:
        return bool(self.assessments) and self.assessments[-1].status is Status.VALID

    def _may_close(self, fact: Closed) -> bool:
        match fact.outcome:
            case Outcome.VALID:
                is_valid = self._is_valid() and self.state is not None
                return is_valid and fact.score == self._worth(self.scores)
            case Outcome.PLACEHOLDER:
                assert self.terminated is not None
                return self.terminated.state is None and fact.score is None
            case Outcome.EXCLUDED:
                return fact.score is None and not (self._is_valid() and self.state is not None)
            case Outcome.SURPLUS:
                return fact.score is None


def steps_of(task: Task) -> tuple[TaskStep, ...]:
    """A task without steps is one step."""
    if task.steps:
        return task.steps
    return (
        TaskStep(
            name=task.id,
            instruction=task.instruction,
            files=None,
            evaluation=task.evaluation,
        ),
    )


def worth(task: Task, scores: Mapping[int, float]) -> float:
    """The reward that the scores of its steps come to, by their numbers."""
    all_scores = [
        scores.get(number, step.evaluation.lowest) for number, step in enumerate(steps_of(task))
    ]
    return all_scores[-1] if task.steps_reward == "final" else fmean(all_scores)


def why_over(
    ended: StepEnded,
    *,
    name: str,
    is_scored: bool,
    is_enough: bool,
    is_cancelled: bool,
    left_s: float,
) -> tuple[Ending, str] | None:
    """How an execution ends behind a step; None: the next one begins."""
    if is_cancelled:
        return Ending.CANCELLED, f"cancelled behind step {name}"
    if not is_scored:
        return ended.ending, f"{ended.reason}; step {name} has no score"
    if not is_enough:
        return ended.ending, f"{ended.reason}; step {name} did not reach what the next waits for"
    if left_s <= 0:
        return Ending.TIMED_OUT, f"the agent's time was over behind step {name}"
    return None
