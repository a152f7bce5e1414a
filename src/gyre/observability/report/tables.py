"""Runs in numbers: what each came to, how runs differ, and all that was drawn as JSON and CSV."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from math import isfinite
from statistics import fmean
from typing import Any

from gyre.observability.dashboard.views import moment, plain_shape
from gyre.observability.report.figures_training import ratio
from gyre.observability.report.model import ABSENT, ReportRun, ReportTable, took
from gyre.observability.terminal.text import many, spoken

FORMAT = 1
"""Of the JSON; grows when something in it means something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number that every run may have."""

    name: str
    of: Callable[[ReportRun], float | None]
    written: Callable[[float], str]


def _counted(value: float) -> str:
    return f"{value:,.0f}"


def _shared(value: float) -> str:
    return f"{value:.1%}"


def _exact(value: float) -> str:
    return f"{value:.3f}"


def _times(value: float) -> str:
    return f"{value:.2f}×"


def _first(column: str) -> Callable[[ReportRun], float | None]:
    return lambda run: next(_column(run, column), None)


def _last(column: str) -> Callable[[ReportRun], float | None]:
    return lambda run: next(reversed(list(_column(run, column))), None)


def _column(run: ReportRun, name: str) -> Iterator[float]:
    return (value for value in run.panels["steps"][name] if value is not None)


def _score(run: ReportRun) -> float | None:
    found = [mean for mean in run.panels["evaluation"]["mean"] if mean is not None]
    return found[-1] if found else None


def _part(*causes: str) -> Callable[[ReportRun], float | None]:
    """Of all time of all cells and engines."""

    def part(run: ReportRun) -> float | None:
        found = run.panels["idle"]
        by_cause = dict(zip(found["causes"], found["total"], strict=True))
        whole = sum(by_cause.values())
        return sum(by_cause[cause] for cause in causes) / whole if whole else None

    return part


def _uncomputed(run: ReportRun) -> float | None:
    rows = sum(_column(run, "row_tokens"))
    return 1 - sum(_column(run, "tokens")) / rows if rows else None


def _switch_s(run: ReportRun) -> float | None:
    found = [sum(transition.fact.phases.values()) for transition in run.history.fleet.transitions]
    return fmean(found) if found else None


def _late(run: ReportRun) -> float | None:
    found = run.panels["durations"]["executions"]
    return sum(found["counts"].get("timed-out", ())) / found["num"] if found["num"] else None


QUANTITIES = (
    Quantity(name="steps", of=lambda run: len(run.panels["steps"]["step"]), written=_counted),
    Quantity(name="time", of=lambda run: run.end_s, written=spoken),
    Quantity(name="time of a step, mean", of=lambda run: _mean(run, "took_s"), written=spoken),
    Quantity(name="async against elastic", of=lambda run: ratio(run, "async"), written=_times),
    Quantity(
        name="colocate against elastic", of=lambda run: ratio(run, "colocate"), written=_times
    ),
    Quantity(name="reward, first step", of=_first("reward"), written=_exact),
    Quantity(name="reward, last step", of=_last("reward"), written=_exact),
    Quantity(name="held-out score, last round", of=_score, written=_exact),
    Quantity(
        name="staleness, mean", of=lambda run: run.panels["staleness"]["mean"], written=_exact
    ),
    Quantity(
        name="staleness, predicted",
        of=lambda run: run.panels["staleness"]["predicted"],
        written=_exact,
    ),
    Quantity(
        name="groups trained", of=lambda run: run.history.levels[-1].trained, written=_counted
    ),
    Quantity(name="groups void", of=lambda run: run.history.levels[-1].void, written=_counted),
    Quantity(
        name="executions ended",
        of=lambda run: run.panels["durations"]["executions"]["num"],
        written=_counted,
    ),
    Quantity(name="part of them timed out", of=_late, written=_shared),
    Quantity(
        name="time of an execution, mean",
        of=lambda run: run.panels["durations"]["executions"]["mean"],
        written=spoken,
    ),
    Quantity(name="time serving", of=_part("serving"), written=_shared),
    Quantity(name="time training", of=_part("training"), written=_shared),
    Quantity(name="time in empty seats", of=_part("empty seats"), written=_shared),
    Quantity(
        name="time waiting or switching",
        of=_part(
            "waiting for rollouts", "waiting for weights", "waiting for publication", "switching"
        ),
        written=_shared,
    ),
    Quantity(name="time fenced or dead", of=_part("fenced", "dead"), written=_shared),
    Quantity(
        name="changes of role timed",
        of=lambda run: len(run.history.fleet.transitions) or None,
        written=_counted,
    ),
    Quantity(name="time of a change of role, mean", of=_switch_s, written=took),
    Quantity(
        name="publications",
        of=lambda run: len(run.panels["publications"]["version"]),
        written=_counted,
    ),
    Quantity(
        name="tokens trained", of=lambda run: sum(_column(run, "tokens")) or None, written=_counted
    ),
    Quantity(name="tokens that sharing prefixes saved", of=_uncomputed, written=_shared),
    Quantity(
        name="faults",
        of=lambda run: sum(run.panels["faults"]["counts"].values()),
        written=_counted,
    ),
)


def _mean(run: ReportRun, name: str) -> float | None:
    found = list(_column(run, name))
    return fmean(found) if found else None


def in_numbers(runs: Sequence[ReportRun]) -> ReportTable:
    """What each run came to; beside another one also how much more or less that is than the
    first's."""
    rows = []
    for quantity in QUANTITIES:
        values = [quantity.of(run) for run in runs]
        if any(value is not None for value in values):
            rows.append([quantity.name, *_cells(quantity, values)])
    head = [""]
    for place, run in enumerate(runs):
        head += [run.label] if place == 0 else [run.label, f"against {runs[0].label}"]
    return ReportTable(caption="In numbers", head=head, rows=rows)


def _cells(quantity: Quantity, values: Sequence[float | None]) -> Iterator[str]:
    for place, value in enumerate(values):
        yield ABSENT if value is None else quantity.written(value)
        if place:
            yield difference(value, values[0], is_part=quantity.written is _shared)


def difference(value: float | None, first: float | None, *, is_part: bool = False) -> str:
    """In percent of the first, or plainly where that is nothing; of parts in percentage points."""
    if value is None or first is None:
        return ABSENT
    if value == first:
        return "="
    if is_part:
        return f"{(value - first) * 100:+.1f} points"
    if first == 0:
        return f"{value:+,.3g}"
    return f"{value / first - 1:+,.1%}"


# How a run stands


def stands(run: ReportRun) -> str:
    """A sentence on whether that is all of it."""
    steps, planned = len(run.panels["steps"]["step"]), run.history.shape.steps
    taken = many(steps, "step") if planned in (None, steps) else f"{steps} of {planned} steps"
    kind = "A simulated run" if run.is_simulated else "A run"
    text = f"{kind} of {taken} in {spoken(run.end_s)}"
    match run.state:
        case "ended":
            text += f", which has ended: {run.ended}."
        case "running":
            text += ", which is still running: this is all that has happened so far."
        case _:
            text += (
                ", which has not ended and which nobody works on: it was killed or interrupted, "
                "and this is what it had come to."
            )
    if run.problem is not None:
        text += f" Its journal was read up to there only: {run.problem}."
    return text


# Beside the page


def plain(runs: Sequence[ReportRun]) -> dict[str, Any]:
    """All that was drawn, and what each run came to, in plain values."""
    return {"format": FORMAT, "runs": [_plain(run) for run in runs]}


def _plain(run: ReportRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "state": run.state,
        "ended": run.ended,
        "problem": run.problem,
        "is_simulated": run.is_simulated,
        "seed": run.seed,
        "started_at": run.started_at,
        "end_s": run.end_s,
        "shape": plain_shape(run.history.shape),
        "moment": moment(run.history, run.end_s),
        "numbers": {quantity.name: quantity.of(run) for quantity in QUANTITIES},
        "compared": [asdict(comparison) for comparison in run.compared],
        "panels": dict(run.panels) | {"trees": run.trees},
    }


def as_json(found: object) -> str:
    """What is not a finite number is absent, because JSON has no word for it."""
    return json.dumps(_finite(found), allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def _finite(found: Any) -> Any:
    match found:
        case float():
            return found if isfinite(found) else None
        case dict():
            return {key: _finite(value) for key, value in found.items()}
        case list() | tuple():
            return [_finite(item) for item in found]
        case _:
            return found


def steps_csv(runs: Sequence[ReportRun]) -> str:
    """A line for each step of each run; what a run has not is empty."""
    held = StringIO()
    writer = csv.writer(held, lineterminator="\n")
    names = list(runs[0].panels["steps"])
    writer.writerow(["run", *names])
    for run in runs:
        steps = run.panels["steps"]
        for row in zip(*(steps[name] for name in names), strict=True):
            writer.writerow([run.label, *("" if value is None else value for value in row)])
    return held.getvalue()
