"""Pictures of demand: the water against its capacity, and how far groups are."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gyre.observability.report.part import ReportPart, ReportTable, count
from gyre.observability.report.plotting import (
    figure,
    filled,
    from_zero,
    legend,
    same_height,
    time_axes,
    whole_numbers,
)
from gyre.observability.report.told import ReportRun
from gyre.observability.terminal.palette import colour

STATES = ("queued", "running", "assessing", "ready", "assigned")


def _water(runs: Sequence[ReportRun]) -> Figure:
    made = figure(2.1 * len(runs) + 0.4)
    grid = list(made.subplots(len(runs), 1, squeeze=False)[:, 0])
    units = time_axes(grid, [run.end_s for run in runs])
    for axes, run, unit_s in zip(grid, runs, units, strict=True):
        _levels(axes, run, unit_s)
        axes.set_title(run.label)
        axes.set_ylabel("executions")
        from_zero(axes)
        whole_numbers(axes, y=True)
        legend(axes)
    same_height(grid)
    return made


def _levels(axes: Axes, run: ReportRun, unit_s: float) -> None:
    rows = run.panels["water"]
    at = [at_s / unit_s for at_s in [*rows["at_s"], run.end_s]]
    held = {name: [*rows[name], rows[name][-1]] for name in rows if name != "at_s"}
    axes.fill_between(at, held["waterlevel"], step="post", color=colour("waterlevel"), alpha=0.25)
    axes.step(at, held["waterlevel"], where="post", color=colour("waterlevel"), label="waterlevel")
    axes.step(
        at, held["running"], where="post", color=colour("running"), linewidth=0.8, label="running"
    )
    if any(held["evaluations"]):
        axes.step(
            at,
            held["evaluations"],
            where="post",
            color=colour("evaluations"),
            linewidth=0.9,
            label="held-out",
        )
    axes.step(
        at,
        held["capacity"],
        where="post",
        color=colour("capacity"),
        linewidth=1.2,
        label="capacity",
    )
    axes.step(
        at,
        held["line"],
        where="post",
        color=colour("admission line"),
        linestyle=(0, (5, 2.5)),
        linewidth=1.1,
        label="admission line",
    )


def _water_says(run: ReportRun) -> str:
    levels = run.story.levels
    spans = zip(levels, [*(one.at_s for one in levels[1:]), run.end_s], strict=True)
    below_s = sum(
        until_s - one.at_s
        for one, until_s in spans
        if one.waterlevel <= one.capacity - run.story.shape.cell_capacity
    )
    peak = max(one.waterlevel for one in levels)
    full = max(one.capacity for one in levels)
    return (
        f"The waterlevel reaches {peak:,} executions against a capacity of up to {full:,}; for "
        f"{below_s / run.end_s:.0%} of the time it is at the admission line or below, where a cell "
        "may enter training."
    )


def _groups(runs: Sequence[ReportRun]) -> Figure:
    made = figure(1.8 * len(runs) + 0.4)
    grid = list(made.subplots(len(runs), 1, squeeze=False)[:, 0])
    units = time_axes(grid, [run.end_s for run in runs])
    for axes, run, unit_s in zip(grid, runs, units, strict=True):
        rows = run.panels["groups"]
        at = [at_s / unit_s for at_s in [*rows["at_s"], run.end_s]]
        lower = [0] * len(at)
        for state in STATES:
            held = [*rows[state], rows[state][-1]]
            upper = [below + many for below, many in zip(lower, held, strict=True)]
            axes.fill_between(
                at, upper, lower, step="post", label=state, **filled(f"group {state}")
            )
            lower = upper
        axes.set_title(run.label)
        axes.set_ylabel("groups")
        from_zero(axes)
        whole_numbers(axes, y=True)
        legend(axes)
    same_height(grid)
    return made


def _groups_says(run: ReportRun) -> str:
    last = run.story.levels[-1]
    most = max(
        one.queued_groups + one.running_groups + one.assessing_groups + one.ready + one.assigned
        for one in run.story.levels
    )
    return (
        f"At most {most:,} groups were outstanding at once; in the end {last.trained:,} were "
        f"trained and {last.void:,} void."
    )


def _groups_tables(run: ReportRun) -> list[ReportTable]:
    last = run.story.levels[-1]
    counts = {
        "queued": last.queued_groups,
        "running": last.running_groups,
        "being assessed": last.assessing_groups,
        "ready": last.ready,
        "in the batch": last.assigned,
        "trained": last.trained,
        "void": last.void,
    }
    rows = [[state, count(many)] for state, many in counts.items()]
    return [
        ReportTable(caption="Groups by state at the last fact", head=["state", "groups"], rows=rows)
    ]


WATER = ReportPart(
    name="waterlevel",
    title="Waterlevel and capacity",
    how="Executions that need a seat, against the seats there are. A cell may enter training while "
    "the waterlevel is not above the dashed admission line, which is what the other cells hold.",
    needs=lambda run: run.end_s > 0,
    draw=_water,
    says=_water_says,
)
GROUPS = ReportPart(
    name="groups",
    title="Groups on their way",
    how="Every group that was admitted and not yet trained, by how far it is.",
    needs=lambda run: run.end_s > 0,
    draw=_groups,
    says=_groups_says,
    tables=_groups_tables,
)
