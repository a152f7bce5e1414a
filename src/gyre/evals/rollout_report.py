"""A rollout for people: a line for each execution, what they come to, and a run's curve."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gyre.evals.rollout_results import EvalResult, read_summary
from gyre.journal.reading import path_of, read
from gyre.model.checkpoint_store import EVALUATIONS
from gyre.rewards.statistics import Mean, ScoreStatistics
from gyre.types.outcomes import Outcome
from gyre.types.run_events import EvaluationRound, StepMade

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
    width = max((len(_cut(one.task)) for one in found.tasks), default=0)
    for one in found.tasks[:MOST_TASKS]:
        passed = f"{one.num_passed}/{one.num_executions} passed"
        yield f"  {_cut(one.task):<{width}}  {_mean(one.score):<20}  {passed}"
    if tasks > MOST_TASKS:
        yield f"  ... {tasks - MOST_TASKS} more"


def counts(results: Sequence[EvalResult]) -> str:
    """How many closed as what."""
    found = [(one, sum(result.outcome is one for result in results)) for one in Outcome]
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
