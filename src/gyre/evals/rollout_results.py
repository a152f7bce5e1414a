"""What became of each execution of a rollout, a line each, and what they all come to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gyre.controller.executions.supervised import SupervisedExecution
from gyre.evals.plan import EvalSpec
from gyre.rewards.statistics import ScoredExecution, ScoreStatistics, score_statistics
from gyre.storage.durable import replace
from gyre.trajectory.loading import versions_of
from gyre.types.errors import LogDamaged
from gyre.types.outcomes import Closed, Outcome

RESULTS_FILE = "results.jsonl"
SUMMARY_FILE = "summary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One execution that has closed."""

    execution: str
    task: str
    ending: str
    outcome: Outcome
    score: float | None
    """Of a valid one, and 0 of a placeholder; None is not 0."""
    highest: float
    """What the task's score can be at most."""
    ran_s: float | None
    """From launch to termination."""
    reason: str | None
    """Why it has no valid score."""
    calls: int
    """Committed by the agent."""
    versions: tuple[int, ...]
    """Of the weights that sampled its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSummary:
    """What a rollout came to, as its file says."""

    model: str
    version: int
    tasks: str
    members: int
    is_whole: bool
    """Whether every execution has closed."""
    versions: tuple[int, ...]
    """All that sampled a token (SPEC 6.6)."""
    spread: ScoreStatistics
    format: int = 1


class EvalResults:
    """Results as they come, in memory and in a file, behind those of before; a context."""

    def __init__(self, folder: Path) -> None:
        """LogDamaged if a whole line of the file is no result; one that is not whole is cut off."""
        path = folder / RESULTS_FILE
        data = path.read_bytes() if path.exists() else b""
        sound = data[: data.rfind(b"\n") + 1]
        try:
            self.all = [msgspec.json.decode(line, type=EvalResult) for line in sound.splitlines()]
        except msgspec.MsgspecError as error:
            message = f"{path}: expected results, a line each: {error}"
            raise LogDamaged(message) from error
        self._file = path.open("ab")
        self._file.truncate(len(sound))

    def add(self, one: EvalResult) -> None:
        self.all.append(one)
        self._file.write(msgspec.json.encode(asdict(one)) + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def result_of(folder: Path, one: SupervisedExecution, closed: Closed) -> EvalResult:
    terminated = one.terminated
    assert terminated is not None
    return EvalResult(
        execution=one.name,
        task=one.task.id,
        ending=terminated.ending.value,
        outcome=closed.outcome,
        score=0.0 if closed.outcome is Outcome.PLACEHOLDER else closed.score,
        highest=one.task.evaluation.highest,
        ran_s=terminated.elapsed_s,
        reason=closed.reason,
        calls=one.told.committed_calls or 0,
        versions=versions_of(folder, one.name),
    )


def spread_of(results: Sequence[EvalResult]) -> ScoreStatistics:
    return score_statistics(
        ScoredExecution(task=one.task, outcome=one.outcome, score=one.score, highest=one.highest)
        for one in results
    )


def summed_up(
    plan: EvalSpec, results: Sequence[EvalResult], *, tasks: str, is_whole: bool
) -> EvalSummary:
    """What they come to, which is then in the rollout's folder too."""
    summary = EvalSummary(
        model=plan.weights.model,
        version=plan.weights.version,
        tasks=tasks,
        members=plan.members,
        is_whole=is_whole,
        versions=tuple(sorted({number for one in results for number in one.versions})),
        spread=spread_of(sorted(results, key=lambda one: one.execution)),
    )
    replace(plan.folder / SUMMARY_FILE, msgspec.json.encode(summary))
    return summary


def read_summary(folder: Path) -> EvalSummary | None:
    """None where there is none, or it is not one."""
    try:
        return msgspec.json.decode((folder / SUMMARY_FILE).read_bytes(), type=EvalSummary)
    except (OSError, msgspec.MsgspecError):
        return None
