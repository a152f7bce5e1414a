"""Simulation results as text and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from statistics import fmean, stdev
from typing import Any

from gyre.scheduler.messages import StopReason
from gyre.simulator.result import SimulatedStep, SimulationResult, StalenessReport
from gyre.simulator.scenario import Scenario
from gyre.simulator.timeline import SIGNS, STEP, TimeAxis, cell_rows, legend
from gyre.simulator.variants import described
from gyre.simulator.workload import HOUR_S

WIDTH = 80
MOST_LINES = 16
"""Lines for cells; where there are more cells, several share a line."""


def timeline(
    record: SimulationResult,
    *,
    standalone: int = 0,
    until_s: float | None = None,
    width: int = WIDTH,
) -> list[str]:
    """A line for each cell, or for a few where there are many; `until_s` gives several records one
    scale."""
    axis_s = max(record.end_s, until_s or 0.0)
    cells = cell_rows(len(record.roles), most=MOST_LINES)
    margin = max(len("waterlevel"), *map(len, cells)) + 2
    axis = TimeAxis(axis_s, width - margin)
    rows = {
        label: axis.roles(
            (span.start_s, span.end_s, SIGNS[span.role.value])
            for cell in shown
            for span in record.roles[cell]
        )
        for label, shown in cells.items()
    }
    if standalone:
        rows[f"alone {standalone}"] = axis.roles([(0.0, record.end_s, SIGNS["rollout"])])
    drawn = "".join(rows.values())
    rows["steps"] = axis.steps(step.at_s for step in record.steps)
    times = [level.at_s for level in record.levels]
    levels = [level.waterlevel for level in record.levels]
    rows["waterlevel"] = axis.levels(times, levels, until_s=record.end_s)
    lines = [f"{label:<{margin}}{row}".rstrip() for label, row in rows.items()]
    end = f"{axis_s / HOUR_S:.2f} h"
    lines.append(f"{'':<{margin}}0{end:>{width - margin - 1}}")
    peak = f"waterlevel up to {max(levels, default=0):,}"
    return lines + legend(drawn, (f"{STEP} a step", peak), between="  ", margin=margin, width=width)


FORMAT = 1
"""Of the JSON; a key may be added under the same number, and none is renamed or taken away."""
MOST_STEPS = 12
"""Lines of the table of steps; longer runs have several steps in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRuns:
    """A scenario with its name and the results of its runs."""

    name: str
    scenario: Scenario
    records: tuple[SimulationResult, ...]
    """One per seed, at least one."""

    @property
    def hours(self) -> "MeanAndSpread":
        return MeanAndSpread.of([record.hours for record in self.records])

    @property
    def staleness(self) -> float | None:
        found = [
            record.staleness.mean for record in self.records if record.staleness.mean is not None
        ]
        return fmean(found) if found else None

    @property
    def busy_share(self) -> float:
        return fmean(record.node_s.busy_share for record in self.records)

    @property
    def bound_h(self) -> float:
        """The higher of both bounds, for the batches that each run made; mean over seeds."""
        return fmean(
            max(record.bounds.packing_s, record.bounds.latency_s) for record in self.records
        ) / (HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanAndSpread:
    """A mean and how far single runs are from it."""

    mean: float
    deviation: float | None
    """Standard deviation; None of one run."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "MeanAndSpread":
        return cls(mean=fmean(values), deviation=stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        shown = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{shown}"


def table(ran: ScenarioRuns) -> list[str]:
    """One scenario: its shape, its first run in numbers, and hours over all seeds."""
    record = ran.records[0]
    rows = [*_shape(ran.scenario), ("hours", _hours(ran)), *_numbers(record)]
    width = max(len(title) for title, _ in rows)
    lines = [f"{ran.name}, seed {record.seed}"]
    lines += [f"  {title:<{width}}  {text}" for title, text in rows]
    return [*lines, "", *_steps(record.steps)]


def _shape(scenario: Scenario) -> Iterator[tuple[str, str]]:
    shape = scenario.shape
    alone = f", {shape.standalone_capacity} standalone" if shape.standalone_capacities else ""
    cells = _many(shape.num_cells, "cell")
    yield (
        "machines",
        f"{cells} of {shape.cell_capacity} executions{alone}; {scenario.num_nodes:g} nodes",
    )
    groups = f"{_many(shape.groups_per_batch, 'group')} of {shape.executions_per_group} a batch"
    yield "schedule", "; ".join(described(shape))
    yield "batches", f"{groups}; {_many(shape.steps or 0, 'step')}"


def _hours(ran: ScenarioRuns) -> str:
    record = ran.records[0]
    over = "" if len(ran.records) == 1 else f"; over {len(ran.records)} seeds {ran.hours}"
    return f"{record.hours:.2f} to the last step{_ended(record)}{over}"


def _unfinished(ran: ScenarioRuns) -> str:
    """Said beside hours that would be taken for fast."""
    return next((how for how in map(_ended, ran.records) if how), "")


def _ended(record: SimulationResult) -> str:
    """How, where it is not as it should be."""
    match record.stopped:
        case StopReason.FINISHED:
            return ""
        case None:
            return "; NOT FINISHED: there was nothing left to wait for"
        case reason:
            return f"; NOT FINISHED: {reason.value}"


def _numbers(record: SimulationResult) -> Iterator[tuple[str, str]]:
    bounds = record.bounds
    yield (
        "bounds",
        f"{bounds.packing_s / HOUR_S:.2f} by packing, {bounds.latency_s / HOUR_S:.2f} by latency",
    )
    yield from _staleness(record.staleness)
    yield "identity", "holds after every step" if record.identity_holds else "BROKEN"
    spent = record.node_s
    if spent.total:
        shares = {
            field.name.replace("_", " "): getattr(spent, field.name) / spent.total
            for field in fields(spent)
        }
        yield "nodes", ", ".join(f"{name} {share:.1%}" for name, share in list(shares.items())[:3])
        yield "", ", ".join(f"{name} {share:.1%}" for name, share in list(shares.items())[3:])
    counts = record.counts
    yield (
        "groups",
        f"{counts.groups_admitted:,} admitted, {counts.groups_trained:,} trained, "
        f"{counts.groups_void:,} void",
    )
    yield (
        "executions",
        f"{counts.executions_launched:,} launched, {counts.executions_timed_out:,} timed out, "
        f"{counts.executions_excluded:,} excluded",
    )
    yield (
        "cells",
        f"{counts.cells_entered:,} entered, {counts.cells_turned_back:,} turned back, "
        f"{counts.rescues:,} rescued, {counts.cells_died:,} died; "
        f"{counts.executions_moved:,} moves",
    )


def _staleness(found: StalenessReport) -> Iterator[tuple[str, str]]:
    if found.mean is None:
        yield "staleness", "no group was consumed"
        return
    predicted = found.predicted
    long_run = "" if predicted is None else f", {predicted:.2f} predicted for the long run"
    yield "staleness", f"mean {found.mean:.2f}{long_run}"
    ages = [f"{age}: {_many(groups, 'group')}" for age, groups in found.histogram]
    most = 5
    for at in range(0, len(ages), most):
        yield "by age" if at == 0 else "", ", ".join(ages[at : at + most])


def _steps(steps: Sequence[SimulatedStep]) -> list[str]:
    """When steps were taken, and what training waited for."""
    if not steps:
        return ["no step was taken"]
    many = -(-len(steps) // MOST_STEPS)
    lines = ["  step       at h   took h   staleness   cells   training idle"]
    for at in range(0, len(steps), many):
        part = steps[at : at + many]
        name = f"{part[0].number}-{part[-1].number}" if len(part) > 1 else f"{part[0].number}"
        ages = [(age, groups) for step in part for age, groups in step.staleness]
        groups = sum(groups for _, groups in ages)
        mean = sum(age * groups for age, groups in ages) / groups if groups else 0.0
        idle_s = sum(step.idle_cell_s for step in part)
        spent_s = idle_s + sum(step.training_cell_s for step in part)
        idle = idle_s / spent_s if spent_s else 0.0
        took_h = fmean(step.took_s for step in part) / HOUR_S
        cells = fmean(step.num_cells for step in part)
        lines.append(
            f"  {name:<8} {part[-1].at_s / HOUR_S:>6.2f}   {took_h:>6.2f}   {mean:>9.2f}   "
            f"{cells:>5.1f}   {idle:>13.0%}"
        )
    return lines


def beside(rans: Sequence[ScenarioRuns]) -> list[str]:
    """Several scenarios, a line each, the first being what the others are measured by."""
    width = max(len("hours"), *(len(str(ran.hours)) for ran in rans))
    name = max(len(ran.name) for ran in rans)
    heading = f"  {'':<{name}}  {'hours':>{width}}  speed  bound h  staleness  busy"
    lines = [heading]
    for ran in rans:
        speed = rans[0].hours.mean / ran.hours.mean if ran.hours.mean else 0.0
        staleness = "-" if ran.staleness is None else f"{ran.staleness:.2f}"
        lines.append(
            f"  {ran.name:<{name}}  {ran.hours!s:>{width}}  {speed:>4.2f}x  {ran.bound_h:>7.2f}  "
            f"{staleness:>9}  {ran.busy_share:>4.0%}{_unfinished(ran)}"
        )
    lines.append("")
    lines += [f"  {ran.name:<{name}}  {'; '.join(_machines(ran.scenario))}" for ran in rans]
    return lines


def _machines(scenario: Scenario) -> Iterator[str]:
    shape = scenario.shape
    yield from described(shape)
    alone = f" + {len(shape.standalone_capacities)} alone" if shape.standalone_capacities else ""
    yield f"{_many(shape.num_cells, 'cell')}{alone}"


def page(rans: Sequence[ScenarioRuns], notes: Sequence[str] = ()) -> list[str]:
    """A table, the timeline of every first run on one scale, and what else is to be known."""
    lines = table(rans[0]) if len(rans) == 1 else beside(rans)
    until_s = max(ran.records[0].end_s for ran in rans)
    for ran in rans:
        alone = len(ran.scenario.shape.standalone_capacities)
        heading = [] if len(rans) == 1 else [ran.name]
        drawn = timeline(ran.records[0], standalone=alone, until_s=until_s)
        lines += ["", *heading, *drawn]
    return [*lines, *([""] if notes else []), *notes]


def as_json(rans: Sequence[ScenarioRuns]) -> dict[str, Any]:
    """All records of all scenarios, in plain values."""
    return {
        "format": FORMAT,
        "scenarios": [
            {
                "name": ran.name,
                "hours": plain(ran.hours),
                "records": [record_json(record) for record in ran.records],
            }
            for ran in rans
        ],
    }


def record_json(record: SimulationResult) -> dict[str, Any]:
    """Every field under its name, and what follows from them that people ask for."""
    derived = {
        "hours": record.hours,
        "identity_holds": record.identity_holds,
        "busy_share": record.node_s.busy_share,
        "interpolated_staleness": record.staleness.interpolated,
    }
    return {**plain(record), **derived}


def plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists, members of an enumeration by their value."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
