"""Held-out evaluation executions of a story: asked for, launched, ended, scored (SPEC 6.6)."""

from dataclasses import dataclass

from gyre.scheduler.messages import (
    Command,
    EnterTraining,
    EvaluationEnded,
    EvaluationRequested,
    Event,
    LaunchEvaluation,
    MoveExecutions,
)
from gyre.types.ids import evaluation_name
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import EvaluationScored


@dataclass(slots=True)
class EvaluationRecord:
    """One execution of a held-out task."""

    number: int
    asked_s: float
    version: int
    """Published when it was asked for."""
    execution: str | None = None
    """None until it is scored; one that was stopped begins anew under another name."""
    task: str | None = None
    """None until it is scored."""
    engine: int | None = None
    launched_s: float | None = None
    ended_s: float | None = None
    ending: Ending | None = None
    """Always: journals do not say how they ended, only what they closed as."""
    closed_s: float | None = None
    outcome: Outcome | None = None
    score: float | None = None
    versions: tuple[int, ...] = ()
    """Those that sampled its tokens."""

    @property
    def name(self) -> str:
        return self.execution or evaluation_name(self.number)

    @property
    def ran_s(self) -> float | None:
        """From launch to termination."""
        if self.launched_s is None or self.ended_s is None:
            return None
        return self.ended_s - self.launched_s


class HeldOutHistory:
    """All of them, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.rows: dict[int, EvaluationRecord] = {}

    def heard(self, now: float, event: Event, *, published: int) -> None:
        match event:
            case EvaluationRequested(evaluation=number):
                self.rows.setdefault(number, EvaluationRecord(number, now, published))
            case EvaluationEnded(evaluation=number) if number in self.rows:
                if self.rows[number].ended_s is None:
                    self.rows[number].ended_s = now
            case _:
                pass

    def ordered(self, now: float, order: Command) -> None:
        match order:
            case LaunchEvaluation(evaluation=number, engine=engine) if number in self.rows:
                self.rows[number].launched_s, self.rows[number].engine = now, engine
            case EnterTraining(evaluations=moves) | MoveExecutions(evaluations=moves):
                for one in moves:
                    if one.evaluation in self.rows:
                        self.rows[one.evaluation].engine = one.engine
            case _:
                pass

    def told(self, now: float, fact: object) -> None:
        match fact:
            case EvaluationScored(evaluation=number, version=version):
                one = self.rows.setdefault(number, EvaluationRecord(number, now, version))
                if one.closed_s is None:
                    one.closed_s, one.outcome = now, Outcome(fact.outcome)
                one.execution, one.task, one.score = fact.execution, fact.task, fact.score
                one.version, one.versions = version, fact.versions
            case _:
                pass
