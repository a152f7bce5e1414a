"""The results of a rollout: their file, their summary, and lines of text."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import msgspec

from gyre.controller.executions.supervisors import SupervisedExecution
from gyre.evals.plan import EvalSpec
from gyre.journal.journal import path_of, read
from gyre.model.checkpoint_store import EVALUATIONS
from gyre.rewards.statistics import Mean, ScoredExecution, ScoreStatistics, score_statistics
from gyre.storage.files import replace
from gyre.trajectory.loading import versions_of
from gyre.types.errors import LogDamaged
from gyre.types.outcomes import Closed, Outcome
from gyre.types.run_events import EvaluationRound, StepMade

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
    """Scores and counts of a rollout, as its file says."""

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
    """A context that appends results to a rollout's file, after those of earlier commands."""

    def __init__(self, folder: Path) -> None:
        """LogDamaged if a whole line of the file is no result; one that is not whole is cut off."""
        path = folder / RESULTS_FILE
        data = path.read_bytes() if path.exists() else b""
        sound = data[: data.rfind(b"\n") + 1]
        try:
            self.all = [msgspec.json.decode(line, type=EvalResult) for line in sound.splitlines()]
        except msgspec.MsgspecError as error:
            raise LogDamaged(f"{path}: expected results, a line each: {error}") from error
        self._file = path.open("ab")
        self._file.truncate(len(sound))

    def add(self, one: EvalResult) -> None:
        self.all.append(one)
        self._file.write(msgspec.json.encode(asdict(one)) + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        calls=one.proxy_totals.committed_calls or 0,
        versions=versions_of(folder, one.name),
    )


def spread_of(results: Sequence[EvalResult]) -> ScoreStatistics:
    return score_statistics(
        ScoredExecution(
            task=result.task, outcome=result.outcome, score=result.score, highest=result.highest
        )
        for result in results
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
        versions=tuple(sorted({number for result in results for number in result.versions})),
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


MOST_TASKS = 60
WIDEST = 32


def line(one: EvalResult, *, num_done: int, total: int) -> str:
    """An execution that has closed."""
    count = f"[{num_done:>{len(str(total))}}/{total}]"
    ran = "" if one.ran_s is None else f"{one.ran_s:.1f} s"
    said = f"{count} {one.execution}  {_cut(one.task):<{WIDEST}} {_score(one.score):>7}  "
    said += f"{one.outcome.value:<11} {one.ending:<13} {ran:>9}  {one.calls} calls"
    return said if one.reason is None else f"{said}  {one.reason.splitlines()[0][:80]}"


def page(found: ScoreStatistics) -> Iterator[str]:
    """All of them together, then task by task."""
    tasks = len(found.tasks)
    of = "1 task" if tasks == 1 else f"{tasks} tasks"
    yield f"{found.num_executions} executions of {of}, {_outcomes(found)}"
    yield f"  score      {_mean(found.score)}"
    yield f"  pass rate  {_mean(found.passed)}"
    if found.any_passed is not None and found.num_executions > tasks:
        yield f"  passed by any  {found.any_passed:.3f}"
    yield ""
    width = max((len(_cut(task.task)) for task in found.tasks), default=0)
    for task in found.tasks[:MOST_TASKS]:
        passed = f"{task.num_passed}/{task.num_executions} passed"
        yield f"  {_cut(task.task):<{width}}  {_mean(task.score):<20}  {passed}"
    if tasks > MOST_TASKS:
        yield f"  ... {tasks - MOST_TASKS} more"


def counts(results: Sequence[EvalResult]) -> str:
    """How many closed as what."""
    found = [(outcome, sum(result.outcome is outcome for result in results)) for outcome in Outcome]
    return ", ".join(f"{number} {one.value}" for one, number in found if number)


def curve(run: Path) -> Iterator[str]:
    """Held-out scores and rewards of a run by version: its own rounds, and evaluations of it."""
    kinds = (EvaluationRound, StepMade)
    facts = read(path_of(run), kinds=kinds).facts(kinds) if path_of(run).exists() else []
    rows: list[tuple[int, str, str]] = []
    rewards: dict[int, float] = {}
    for _, fact in facts:
        if isinstance(fact, StepMade) and fact.reward is not None:
            rewards[fact.step] = fact.reward
        elif isinstance(fact, EvaluationRound):
            mean = Mean(num=fact.num_valid, mean=fact.mean, standard_error=fact.standard_error)
            rows.append((fact.version, _mean(mean), f"its own round of {fact.num_tasks} tasks"))
    for folder in sorted((run / EVALUATIONS).glob("*/")):
        summary = read_summary(folder)
        if summary is not None:
            rows.append((summary.version, _mean(summary.spread.score), summary.tasks))
    if not rows:
        return
    yield f"{'version':>7}  {'training reward':>15}  held-out score"
    for version, score, what in sorted(rows, key=lambda row: row[0]):
        reward = f"{rewards[version]:.3f}" if version in rewards else "-"
        yield f"{version:>7}  {reward:>15}  {score:<20}  {what}"


def _outcomes(found: ScoreStatistics) -> str:
    said = f"{found.num_valid} with a score"
    if found.num_placeholders:
        said += f", {found.num_placeholders} of them placeholders"
    left = found.num_executions - found.num_valid
    return f"{said}, {left} excluded" if left else said


def _mean(one: Mean) -> str:
    if one.mean is None:
        return "none"
    error = "" if one.standard_error is None else f" ± {one.standard_error:.3f}"
    return f"{one.mean:.3f}{error}"


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"


def _cut(name: str) -> str:
    return name if len(name) <= WIDEST else f"{name[: WIDEST - 3]}..."
