"""Scores of many executions as a mean with its spread, by task and in all (SPEC 6.6).

Rule 1: what has no valid score is counted and is in no mean.
Rule 2: executions of one task hang together, so the spread in all is that of the tasks' means.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from gyre.types.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredExecution:
    """The outcome and score of one closed execution."""

    task: str
    outcome: Outcome
    score: float | None
    """Of a valid one, and 0 of a placeholder (SPEC 6.4)."""
    highest: float
    """What a score must reach to pass."""

    @property
    def is_passed(self) -> bool:
        return self.score is not None and self.score >= self.highest


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean with its standard error; None without values, and no error of one value alone."""

    num: int
    mean: float | None
    standard_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStatistics:
    """Outcomes and scores of a set of executions."""

    num_executions: int
    num_valid: int
    """Placeholders included."""
    num_placeholders: int
    score: Mean
    passed: Mean
    """The part that reached the highest score."""
    any_passed: float | None
    """The part of the tasks that at least one execution passed."""
    tasks: tuple["TaskStatistics", ...]
    """In the order in which they were met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """Outcomes and scores of one task's executions."""

    task: str
    num_executions: int
    num_passed: int
    score: Mean
    """Over its valid scores."""


def score_statistics(executions: Iterable[ScoredExecution]) -> ScoreStatistics:
    """Of any number of executions, in any order."""
    known = list(executions)
    by_task: dict[str, list[ScoredExecution]] = {}
    for execution in known:
        by_task.setdefault(execution.task, []).append(execution)
    valid = {
        task: [execution for execution in ones if execution.score is not None]
        for task, ones in by_task.items()
    }
    rated = [ones for ones in valid.values() if ones]
    return ScoreStatistics(
        num_executions=len(known),
        num_valid=sum(map(len, rated)),
        num_placeholders=sum(execution.outcome is Outcome.PLACEHOLDER for execution in known),
        score=_over([[_score(execution) for execution in ones] for ones in rated]),
        passed=_over([[float(execution.is_passed) for execution in ones] for ones in rated]),
        any_passed=fmean(any(execution.is_passed for execution in ones) for ones in rated)
        if rated
        else None,
        tasks=tuple(
            TaskStatistics(
                task=task,
                num_executions=len(ones),
                num_passed=sum(execution.is_passed for execution in ones),
                score=mean_of([_score(execution) for execution in valid[task]]),
            )
            for task, ones in by_task.items()
        ),
    )


def mean_of(values: Sequence[float]) -> Mean:
    """With the standard error of the mean, by the spread of the values."""
    return Mean(
        num=len(values),
        mean=fmean(values) if values else None,
        standard_error=stdev(values) / sqrt(len(values)) if len(values) > 1 else None,
    )


def _over(tasks: Sequence[Sequence[float]]) -> Mean:
    """Every task weighs the same; of one task alone, its executions spread."""
    return mean_of(tasks[0] if len(tasks) == 1 else [fmean(values) for values in tasks])


def _score(one: ScoredExecution) -> float:
    assert one.score is not None
    return one.score
