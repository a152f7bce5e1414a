"""Figures of demand and executions."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gyre.observability.report.model import ReportPart, ReportRun, ReportTable, count, number
from gyre.observability.report.plotting import (
    figure,
    filled,
    from_zero,
    legend,
    numbers,
    percent,
    run_colour,
    run_dots,
    run_line,
    same_height,
    stacked,
    time_axes,
    unit_of,
    whole_numbers,
)
from gyre.observability.terminal.colors import colour
from gyre.observability.terminal.text import many, spoken

LATE = "timed-out"
_DASHED: dict[str, Any] = {"linestyle": (0, (5, 2.5))}


# Staleness


def _staleness(runs: Sequence[ReportRun]) -> Figure:
    made = figure(2.9)
    ages, steps = made.subplots(1, 2)
    if runs[0].place is None:
        _ages(ages, runs[0])
    else:
        _ages_beside(ages, runs)
    for run in runs:
        found = run.panels["steps"]
        steps.plot(
            found["step"],
            numbers(found["staleness"]),
            label="mean of the step" if run.place is None else run.label,
            **run_line(run.place, "groups"),
            **run_dots(run.place, len(found["step"])),
        )
        predicted = run.panels["staleness"]["predicted"]
        if predicted is not None:
            shade = run_colour(run.place, "expected")
            label = "predicted" if run.place is None else None
            steps.axhline(predicted, color=shade, label=label, **_DASHED)
    steps.set_title("mean by step")
    steps.set_xlabel("step")
    from_zero(steps)
    whole_numbers(steps, x=True)
    legend(steps, most=3)
    return made


def _ages(axes: Axes, run: ReportRun) -> None:
    found = run.panels["staleness"]
    ages, groups = zip(*found["histogram"], strict=True)
    axes.bar(ages, groups, width=0.8, label="groups", **filled("groups"))
    if found["in_order"] is not None:
        expected = dict(found["in_order"])
        last = max([*expected, *ages])
        edges = [age - 0.5 for age in range(last + 2)]
        heights = [expected.get(age, 0) for age in range(last + 1)]
        look = _DASHED | {"color": colour("expected"), "linewidth": 1.2}
        axes.stairs(heights, edges, label="consumed in order", **look)
    axes.axvline(found["mean"], color=colour("step"), linewidth=1.0, label="mean")
    _counted(axes, "groups")
    whole_numbers(axes, y=True)


def _ages_beside(axes: Axes, runs: Sequence[ReportRun]) -> None:
    width = 0.84 / len(runs)
    for place, run in enumerate(runs):
        found = run.panels["staleness"]["histogram"]
        whole = sum(groups for _, groups in found)
        axes.bar(
            [age - 0.42 + width * (place + 0.5) for age, _ in found],
            [groups / whole for _, groups in found],
            width=width,
            color=run_colour(run.place, "groups"),
            label=run.label,
        )
    _counted(axes, "part of groups")
    percent(axes)


def _counted(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("steps between dispatch and training")
    whole_numbers(axes, x=True)
    legend(axes, most=3)


def _staleness_says(run: ReportRun) -> str:
    found = run.panels["staleness"]
    groups = sum(one for _, one in found["histogram"])
    text = f"The mean staleness of {many(groups, 'group')} is {found['mean']:.3f}"
    if found["predicted"] is not None:
        text += f"; {found['formula']} predicts {found['predicted']:.3f} in the long run"
    if found["whole_run"] is not None:
        text += f" and {found['whole_run']:.3f} exactly for a run of this length"
    how = "holds at every step" if found["identity"]["holds"] else "IS BROKEN"
    return f"{text}. The identity of ages {how}."


def _staleness_tables(run: ReportRun) -> list[ReportTable]:
    found = run.panels["staleness"]
    expected = dict(found["in_order"] or ())
    counted = dict(found["histogram"])
    rows = [
        [str(age), count(counted.get(age, 0))]
        + ([count(expected.get(age, 0))] if found["in_order"] is not None else [])
        for age in range(max([*counted, *expected]) + 1)
    ]
    head = ["staleness", "groups"] + (["consumed in order"] if found["in_order"] else [])
    return [ReportTable(caption="Groups by staleness", head=head, rows=rows)]


# Durations and sizes


def _histograms(
    axes: Axes, found: Mapping[str, Any], *, scale: float = 1.0, is_whole: bool = False
) -> list[Patch]:
    """Counts by ending upon each other, what has timed out on top; what a legend shows of them."""
    width = (found["edges"][1] - found["edges"][0]) / scale
    # A bar of one whole number stands on it.
    shift = width / 2 if is_whole and width == 1 else 0.0
    edges = [edge / scale - shift for edge in found["edges"]]
    lower = [0] * (len(edges) - 1)
    kinds = sorted(found["counts"], key=lambda one: one == LATE)
    handles = []
    for kind in kinds:
        bins = found["counts"][kind]
        axes.bar(edges[:-1], bins, width=width * 0.94, bottom=lower, align="edge", **filled(kind))
        lower = [below + one for below, one in zip(lower, bins, strict=True)]
        name = "in time" if kind == "all" else kind
        handles.append(Patch(label=f"{name}, {sum(bins):,}", **filled(kind)))
    if found["is_open"]:
        _open_end(axes, edges, lower)
    whole_numbers(axes, y=True)
    axes.set_xlim(edges[0], edges[-1])
    axes.axvline(found["mean"] / scale, color=colour("step"), linewidth=0.9, linestyle=(0, (4, 2)))
    return handles


def _open_end(axes: Axes, edges: Sequence[float], heights: Sequence[int]) -> None:
    """Marks that the last bin takes in all longer values."""
    axes.annotate(
        "≥",
        ((edges[-1] + edges[-2]) / 2, heights[-1]),
        ha="center",
        va="bottom",
        xytext=(0, 1),
        textcoords="offset points",
        fontsize=9,
    )


def _whose(run: ReportRun) -> str:
    return "executions" if run.place is None else run.label


def _durations(runs: Sequence[ReportRun]) -> Figure:
    made = figure(2.4 * len(runs) + 0.3)
    grid = made.subplots(len(runs), 2, squeeze=False)
    for row, run in zip(grid, runs, strict=True):
        found = run.panels["durations"]
        for axes, name, title in (
            (row[0], "executions", "each execution"),
            (row[1], "queries", "longest of each group"),
        ):
            if not found[name]["num"]:
                axes.set_visible(False)
                continue
            unit_s, unit = unit_of(found[name]["edges"][-1])
            handles = _histograms(axes, found[name], scale=unit_s)
            legend(axes, handles, most=2)
            axes.set_title(title)
            axes.set_xlabel(unit)
        row[0].set_ylabel(_whose(run))
    return made


def _durations_says(run: ReportRun) -> str:
    found = run.panels["durations"]
    executions, queries = found["executions"], found["queries"]
    late = sum(executions["counts"].get(LATE, ()))
    text = (
        f"{many(executions['num'], 'execution')} ran {spoken(executions['mean'])} on average, half "
        f"of them up to {spoken(executions['median'])}, 95% up to {spoken(executions['p95'])}; "
        f"{late:,} timed out"
    )
    if queries["num"]:
        text += f". The longest of each group took {spoken(queries['mean'])} on average"
    return f"{text}."


def _durations_tables(run: ReportRun) -> list[ReportTable]:
    found = run.panels["durations"]
    named = {"executions": "executions", "queries": "longest of each group"}
    rows = [
        [title, count(one["num"]), *(spoken(one[key]) for key in ("mean", *_QUANTILES))]
        for name, title in named.items()
        if (one := found[name])["num"]
    ]
    head = ["", "number", "mean", "median", "95%", "longest"]
    return [ReportTable(caption="Durations", head=head, rows=rows)]


_QUANTILES = ("median", "p95", "max")
_SIZES = {
    "tokens": "tokens of a tree, shared once",
    "sampled": "tokens that engines gave",
    "calls": "calls",
    "tool_calls": "tool calls",
    "leaves": "leaves of a tree",
}


def _trees(runs: Sequence[ReportRun]) -> Figure:
    shown = [name for name in _SIZES if name != "calls"]
    made = figure(2.3 * 2 * len(runs) + 0.2)
    grid = made.subplots(2 * len(runs), 2, squeeze=False)
    for place, run in enumerate(runs):
        assert run.trees is not None
        for axes, name in zip(grid[2 * place : 2 * place + 2].flat, shown, strict=True):
            found = run.trees[name]
            handles = _histograms(axes, found, is_whole=True)
            axes.set_title(_SIZES[name])
            whole_numbers(axes, x=True)
            axes.set_ylabel(_whose(run))
            if name == shown[0]:
                legend(axes, handles, most=2)
    return made


def _trees_says(run: ReportRun) -> str:
    assert run.trees is not None
    tokens, leaves, tools = (run.trees[name] for name in ("tokens", "leaves", "tool_calls"))
    read = many(run.trees["num_read"], "tree")
    return (
        f"{read} of {many(run.trees['num_closed'], 'closed execution')}: "
        f"{tokens['mean']:,.0f} tokens, {tools['mean']:,.1f} tool calls and {leaves['mean']:,.1f} "
        f"leaves on average; the largest has {tokens['max']:,.0f} tokens, the widest "
        f"{leaves['max']:,.0f} leaves."
    )


def _trees_tables(run: ReportRun) -> list[ReportTable]:
    assert run.trees is not None
    rows = [
        [title, *(number(run.trees[name][key], 4) for key in ("mean", *_QUANTILES))]
        for name, title in _SIZES.items()
    ]
    return [
        ReportTable(
            caption="Sizes of trees", head=["", "mean", "median", "95%", "largest"], rows=rows
        )
    ]


STALENESS = ReportPart(
    name="staleness",
    title="Staleness against its prediction",
    how="How many updates were taken between a group's dispatch and the one that it was trained "
    "in. Dashed: the same groups consumed in the order of their dispatch, and the mean that "
    "dispatch alone predicts.",
    needs=lambda run: bool(run.panels["staleness"]["histogram"]),
    draw=_staleness,
    says=_staleness_says,
    tables=_staleness_tables,
)
DURATIONS = ReportPart(
    name="durations",
    title="How long executions took",
    how="From launch to termination, by how they ended; a hatched bar has timed out. The dashed "
    "line is the mean, and a bin with ≥ takes in all that is longer.",
    needs=lambda run: bool(run.panels["durations"]["executions"]["num"]),
    draw=_durations,
    says=_durations_says,
    tables=_durations_tables,
)
TREES = ReportPart(
    name="trees",
    title="How large trees became",
    how="Of executions that have closed, by how they ended; a hatched bar has timed out. What "
    "several paths of a tree share counts once. Of a long run some are read, spread over it.",
    needs=lambda run: run.trees is not None and bool(run.trees["num_read"]),
    draw=_trees,
    says=_trees_says,
    tables=_trees_tables,
)


STATES = ("queued", "running", "assessing", "ready", "assigned")


def _water(runs: Sequence[ReportRun]) -> Figure:
    made, grid = stacked([2.1] * len(runs), beside_in=0.4)
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
    curves: list[tuple[str, str, str, dict[str, Any]]] = [
        ("waterlevel", "waterlevel", "waterlevel", {}),
        ("running", "running", "running", {"linewidth": 0.8}),
        ("evaluations", "evaluations", "held-out", {"linewidth": 0.9}),
        ("capacity", "capacity", "capacity", {"linewidth": 1.2}),
        ("line", "admission line", "admission line", _DASHED | {"linewidth": 1.1}),
    ]
    for name, word, label, look in curves:
        if name != "evaluations" or any(held[name]):
            axes.step(at, held[name], where="post", color=colour(word), label=label, **look)


def _water_says(run: ReportRun) -> str:
    levels = run.history.levels
    spans = zip(levels, [*(level.at_s for level in levels[1:]), run.end_s], strict=True)
    below_s = sum(
        until_s - one.at_s
        for one, until_s in spans
        if one.waterlevel <= one.capacity - run.history.shape.cell_capacity
    )
    peak = max(level.waterlevel for level in levels)
    full = max(level.capacity for level in levels)
    return (
        f"The waterlevel reaches {peak:,} executions against a capacity of up to {full:,}; for "
        f"{below_s / run.end_s:.0%} of the time it is at the admission line or below, where a cell "
        "may enter training."
    )


def _groups(runs: Sequence[ReportRun]) -> Figure:
    made, grid = stacked([1.8] * len(runs), beside_in=0.4)
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
    last = run.history.levels[-1]
    most = max(
        level.queued_groups
        + level.running_groups
        + level.assessing_groups
        + level.ready
        + level.assigned
        for level in run.history.levels
    )
    return (
        f"At most {most:,} groups were outstanding at once; in the end {last.trained:,} were "
        f"trained and {last.void:,} void."
    )


def _groups_tables(run: ReportRun) -> list[ReportTable]:
    last = run.history.levels[-1]
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
