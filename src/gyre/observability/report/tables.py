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
from gyre.observability.report.model import ABSENT, ReportRun, ReportTable, column, took
from gyre.observability.terminal.text import many, spoken

FORMAT = 1
"""Of the JSON; grows when something in it means something else."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every run may have."""

    name: str
    of: Callable[[ReportRun], float | None]
    written: Callable[[float], str]


_COUNTED = "{:,.0f}".format
_SHARED = "{:.1%}".format
_EXACT = "{:.3f}".format
_TIMES = "{:.2f}×".format


def _first(name: str) -> Callable[[ReportRun], float | None]:
    return lambda run: next(iter(column(run, name)), None)


def _last(name: str) -> Callable[[ReportRun], float | None]:
    return lambda run: next(reversed(column(run, name)), None)


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
    rows = sum(column(run, "row_tokens"))
    return 1 - sum(column(run, "tokens")) / rows if rows else None


def _switch_s(run: ReportRun) -> float | None:
    found = [sum(transition.fact.phases.values()) for transition in run.history.fleet.transitions]
    return fmean(found) if found else None


def _late(run: ReportRun) -> float | None:
    found = run.panels["durations"]["executions"]
    return sum(found["counts"].get("timed-out", ())) / found["num"] if found["num"] else None


QUANTITIES = (
    Quantity("steps", lambda run: len(run.panels["steps"]["step"]), _COUNTED),
    Quantity("time", lambda run: run.end_s, spoken),
    Quantity("time of a step, mean", lambda run: _mean(run, "took_s"), spoken),
    Quantity("async against elastic", lambda run: ratio(run, "async"), _TIMES),
    Quantity("colocate against elastic", lambda run: ratio(run, "colocate"), _TIMES),
    Quantity("reward, first step", _first("reward"), _EXACT),
    Quantity("reward, last step", _last("reward"), _EXACT),
    Quantity("held-out score, last round", _score, _EXACT),
    Quantity("staleness, mean", lambda run: run.panels["staleness"]["mean"], _EXACT),
    Quantity("staleness, predicted", lambda run: run.panels["staleness"]["predicted"], _EXACT),
    Quantity("groups trained", lambda run: run.history.levels[-1].trained, _COUNTED),
    Quantity("groups void", lambda run: run.history.levels[-1].void, _COUNTED),
    Quantity(
        "executions ended", lambda run: run.panels["durations"]["executions"]["num"], _COUNTED
    ),
    Quantity("part of them timed out", _late, _SHARED),
    Quantity(
        "time of an execution, mean",
        lambda run: run.panels["durations"]["executions"]["mean"],
        spoken,
    ),
    Quantity("time serving", _part("serving"), _SHARED),
    Quantity("time training", _part("training"), _SHARED),
    Quantity("time in empty seats", _part("empty seats"), _SHARED),
    Quantity(
        "time waiting or switching",
        _part(
            "waiting for rollouts", "waiting for weights", "waiting for publication", "switching"
        ),
        _SHARED,
    ),
    Quantity("time fenced or dead", _part("fenced", "dead"), _SHARED),
    Quantity(
        "changes of role timed", lambda run: len(run.history.fleet.transitions) or None, _COUNTED
    ),
    Quantity("time of a change of role, mean", _switch_s, took),
    Quantity("publications", lambda run: len(run.panels["publications"]["version"]), _COUNTED),
    Quantity("tokens trained", lambda run: sum(column(run, "tokens")) or None, _COUNTED),
    Quantity("tokens that sharing prefixes saved", _uncomputed, _SHARED),
    Quantity("faults", lambda run: sum(run.panels["faults"]["counts"].values()), _COUNTED),
)


def _mean(run: ReportRun, name: str) -> float | None:
    found = column(run, name)
    return fmean(found) if found else None


def in_numbers(runs: Sequence[ReportRun]) -> ReportTable:
    """What each run came to, and how much more or less that is than what the first came to."""
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
            yield difference(value, values[0], is_part=quantity.written is _SHARED)


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
