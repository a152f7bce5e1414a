"""`gyre plan`: which phi and mu to use for a target staleness, on cells of which size (SPEC 1.4).

Rule 1: every pair meets the same executions, so pairs differ by their schedule alone.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import ceil, floor, isfinite, log
from typing import Any

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Boundary, Resumable
from gyre.simulator.scenario import Scenario
from gyre.simulator.theory import dispatch_settings
from gyre.simulator.workload import HOUR_S, ByGroups, Costs, LogNormal, SimulatedDeadlines, Workload
from gyre.simulator.world import run
from gyre.types.errors import ConfigError

NEAR = 0.02
"""Step times closer than this, relatively, are taken for equal: short runs differ by as much."""
MOST_STALENESS = 64
TRAINING_SHARE = 0.5
"""Cell time of training a group over that of rolling it out, where no rate is given: near what
the rate fitted to the paper's runs comes to."""
SIGMA = 0.5
"""Spread of the logarithm of hours, where only their mean is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to divide nodes into cells."""

    num_cells: int
    cell_capacity: int
    nodes_per_cell: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSize:
    """A size of cells to try."""

    nodes_per_cell: int
    capacity: int | None = None
    """Executions such a cell serves; None where that grows with the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A pair on a layout, and what a short simulation of it came to."""

    layout: Layout
    extra_dispatch: float
    """phi."""
    steps_per_burst: int
    """mu."""
    step_h: float
    """Mean time of a step."""
    bound_h: float
    """The same, had no node ever been idle or the longest chain of groups decided alone."""
    idle_share: float
    """Of node time."""
    staleness: float
    """Mean of the simulated run, which begins with fresh groups."""
    oldest: int
    """The highest staleness of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All options, the layouts in the order given, and the one to use."""

    staleness: float
    options: tuple[Option, ...]
    best: Option
    reason: str


def scenario_for(
    *,
    layout: Layout,
    mean_h: float,
    groups_per_batch: int,
    executions_per_group: int,
    groups_per_node_hour: float | None,
) -> Scenario:
    """A plain scenario from few numbers; durations have a long tail up to four times the mean."""
    if not (isfinite(mean_h) and mean_h > 0):
        raise ConfigError(f"hours: above 0, not {mean_h:g}")
    if not layout.nodes_per_cell > 0:
        raise ConfigError(f"nodes per cell: above 0, not {layout.nodes_per_cell:g}")
    rate = groups_per_node_hour
    shape = SchedulerConfig(
        groups_per_batch=groups_per_batch,
        executions_per_group=executions_per_group,
        num_cells=layout.num_cells,
        cell_capacity=layout.cell_capacity,
        steps=1,
    )
    if rate is None:
        rolled_h = executions_per_group * mean_h / layout.cell_capacity
        rate = 1 / (TRAINING_SHARE * rolled_h * layout.nodes_per_cell)
    if not (isfinite(rate) and rate > 0):
        raise ConfigError(f"groups per node hour: above 0, not {rate:g}")
    return Scenario(
        name="plan",
        shape=shape,
        workload=Workload(
            durations=LogNormal(log_mean=log(mean_h) - SIGMA**2 / 2, sigma=SIGMA),
            between=0.5,
            deadlines=SimulatedDeadlines(harness_h=4 * mean_h, overall_h=4 * mean_h),
        ),
        costs=Costs(training=ByGroups(groups_per_node_hour=rate)),
        nodes_per_cell=layout.nodes_per_cell,
    )


def assumed(groups_per_node_hour: float | None) -> list[str]:
    """What `scenario_for` takes for granted, a line each."""
    found = [f"assumed: durations are log-normal with a sigma of {SIGMA:g}"]
    if groups_per_node_hour is None:
        share = f"{TRAINING_SHARE:g} of the cell time of rolling it out"
        found.append(f"assumed: training a group takes {share}")
    return found


def layout_of(scenario: Scenario) -> Layout:
    return Layout(
        num_cells=scenario.shape.num_cells,
        cell_capacity=scenario.shape.cell_capacity,
        nodes_per_cell=scenario.nodes_per_cell,
    )


def divided(num_nodes: int, nodes_per_cell: int, cell_capacity: int) -> Layout:
    """All nodes in cells of one size."""
    if num_nodes < 1:
        raise ConfigError(f"nodes: at least 1, not {num_nodes}")
    if nodes_per_cell < 1 or num_nodes % nodes_per_cell:
        fit = [str(size) for size in range(1, min(num_nodes, 64) + 1) if num_nodes % size == 0]
        raise ConfigError(
            f"nodes per cell: {num_nodes} nodes make no whole number of cells of "
            f"{nodes_per_cell}; sizes that do: {', '.join(fit)}"
        )
    return Layout(
        num_cells=num_nodes // nodes_per_cell,
        cell_capacity=cell_capacity,
        nodes_per_cell=nodes_per_cell,
    )


def layouts_of(
    scenario: Scenario, *, num_nodes: int | None, sizes: Sequence[CellSize]
) -> tuple[Layout, ...]:
    """Its nodes, or that many, in cells of each size; as they are where no size is given."""
    given = layout_of(scenario)
    if not sizes:
        return (given,)
    own = given.num_cells * given.nodes_per_cell
    nodes = round(own) if num_nodes is None else num_nodes
    if num_nodes is None and nodes != own:
        raise ConfigError(f"nodes: {own:g} are no whole number, so say how many there are")
    per_node = given.cell_capacity / given.nodes_per_cell
    return tuple(
        divided(
            nodes,
            size.nodes_per_cell,
            round(per_node * size.nodes_per_cell) if size.capacity is None else size.capacity,
        )
        for size in sizes
    )


def pairs(staleness: Fraction, *, batch: int) -> tuple[tuple[Fraction, int], ...]:
    """Every (phi, mu) with this long-run mean; raises ConfigError with the nearest if none has."""
    if not 0 <= staleness <= MOST_STALENESS:
        raise ConfigError(
            f"staleness: a mean from 0 to {MOST_STALENESS} versions, not {float(staleness):g}"
        )
    found = tuple(dispatch_settings(mean_staleness=staleness, batch=batch))
    if not found:
        # phi is a multiple of 1 / B and (mu - 1) / 2 one of 1 / 2, so sums are of 1 / (2 B).
        part = 2 * batch
        below = _nearest(range(floor(staleness * part), -1, -1), part, batch)
        above = _nearest(range(ceil(staleness * part), ceil(staleness * part) + part), part, batch)
        near = [f"{float(bound):g}" for bound in (below, above) if bound is not None]
        raise ConfigError(
            f"staleness: no phi with phi * {batch} whole and no mu give "
            f"{float(staleness):g}; nearest: {' or '.join(near)}"
        )
    return found


def advise(
    scenario: Scenario, *, staleness: Fraction, layouts: Sequence[Layout], steps: int
) -> Advice:
    """Every pair on every layout, simulated for about that many steps."""
    if isinstance(scenario.shape.placement, Resumable):
        raise ConfigError("placement: resumable goes with continuous dispatch, which has no phi")
    if steps < 1:
        raise ConfigError(f"steps: at least 1, not {steps}")
    found = pairs(staleness, batch=scenario.shape.groups_per_batch)
    options = tuple(
        _option(scenario, layout, float(extra), burst, steps)
        for layout in layouts
        for extra, burst in found
    )
    best = best_of(options)
    return Advice(
        staleness=float(staleness), options=options, best=best, reason=_reason(options, best)
    )


def _option(scenario: Scenario, layout: Layout, extra: float, burst: int, steps: int) -> Option:
    shape = replace(
        scenario.shape,
        num_cells=layout.num_cells,
        cell_capacity=layout.cell_capacity,
        dispatch=Boundary(extra_dispatch=extra),
        steps_per_burst=burst,
        steps=ceil(steps / burst) * burst,
        # The end of a run is no part of what its steps take in the long run.
        endless_dispatch=True,
    )
    record = run(replace(scenario, shape=shape, nodes_per_cell=layout.nodes_per_cell))
    if len(record.steps) != shape.steps or record.staleness.mean is None:
        why = record.stopped.value if record.stopped else "stands still"
        raise ConfigError(f"the simulated run ends after {len(record.steps)} steps: {why}")
    return Option(
        layout=layout,
        extra_dispatch=extra,
        steps_per_burst=burst,
        step_h=record.hours / len(record.steps),
        bound_h=max(record.bounds.packing_s, record.bounds.latency_s) / HOUR_S / len(record.steps),
        idle_share=record.node_s.idle_share,
        staleness=record.staleness.mean,
        oldest=record.staleness.histogram[-1][0],
    )


def best_of(options: Sequence[Option]) -> Option:
    """The shortest step; of those about as short the freshest, then the longest burst."""
    shortest = min(option.step_h for option in options)
    near = [option for option in options if option.step_h <= shortest * (1 + NEAR)]
    return min(near, key=lambda one: (one.oldest, -one.steps_per_burst, one.step_h))


def _reason(options: Sequence[Option], best: Option) -> str:
    others = [option for option in options if option is not best]
    if not others:
        return "no other pair meets the target"
    near = [option for option in others if option.step_h <= best.step_h * (1 + NEAR)]
    rest = [option for option in others if option not in near]
    parts = []
    if rest:
        next_h = min(option.step_h for option in rest)
        parts.append(
            f"its steps of {best.step_h:.2f} h are {1 - best.step_h / next_h:.0%} shorter than "
            f"those of the next ({_named(min(rest, key=lambda one: one.step_h))})"
        )
    if near:
        what = "another is" if len(near) == 1 else f"{len(near)} others are"
        parts.append(
            f"{what} within {NEAR:.0%}, and its oldest groups are no older ({best.oldest})"
        )
    return "; ".join(parts)


def _named(option: Option) -> str:
    cells = f"{option.layout.num_cells} cells"
    return f"phi {option.extra_dispatch:g}, mu {option.steps_per_burst}, {cells}"


def _nearest(parts: range, part: int, batch: int) -> Fraction | None:
    for numerator in parts:
        target = Fraction(numerator, part)
        if any(dispatch_settings(mean_staleness=target, batch=batch)):
            return target
    return None


FORMAT = 1
WIDTH = 80
HEADING = (
    "",
    "cells",
    "nodes",
    "capacity",
    "phi",
    "mu",
    "step h",
    "bound h",
    "idle",
    "mean",
    "oldest",
)


def lines(scenario: Scenario, advice: Advice, notes: Sequence[str]) -> list[str]:
    """A table with a star at the option to use, and why."""
    shape = scenario.shape
    best = advice.best
    rows = [HEADING, *(_row(option, is_best=option is best) for option in advice.options)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    use = (
        f"use phi {best.extra_dispatch:g} and mu {best.steps_per_burst} on "
        f"{best.layout.num_cells} cells: {advice.reason}"
    )
    return [
        f"mean staleness {advice.staleness:g}, {shape.groups_per_batch} groups of "
        f"{shape.executions_per_group} executions a step",
        *notes,
        "",
        *("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows),
        "",
        *textwrap.wrap(use, WIDTH),
    ]


def as_json(advice: Advice, notes: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "format": FORMAT,
        "staleness": advice.staleness,
        "options": [asdict(option) | {"best": option is advice.best} for option in advice.options],
        "reason": advice.reason,
        "notes": list(notes),
    }


def _row(one: Option, *, is_best: bool) -> tuple[str, ...]:
    return (
        "*" if is_best else "",
        f"{one.layout.num_cells}",
        f"{one.layout.nodes_per_cell:g}",
        f"{one.layout.cell_capacity}",
        f"{one.extra_dispatch:g}",
        f"{one.steps_per_burst}",
        f"{one.step_h:.2f}",
        f"{one.bound_h:.2f}",
        f"{one.idle_share:.0%}",
        f"{one.staleness:.2f}",
        f"{one.oldest}",
    )
