"""Figures of cells and use."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gyre.observability.report.model import (
    ReportPart,
    ReportRun,
    ReportTable,
    number,
    percentage,
    took,
)
from gyre.observability.report.plotting import (
    GROUND,
    bars_of,
    filled,
    from_zero,
    legend,
    note,
    percent,
    stacked,
    time_axes,
)
from gyre.observability.terminal.colors import colour
from gyre.observability.terminal.text import many, spoken

ROW_IN, LEAST_ROWS_IN, MOST_ROWS_IN = 0.24, 1.0, 6.0
"""Height of a cell's row, and of all of them."""
FEW_LINES = 25
"""Steps and publications whose lines have their full width."""
MOST_STEP_LINES = 150
"""Steps and publications that can be told apart as lines."""
MOST_NAMED_ROWS = 24
MOST_LISTED = 100
"""Faults in the table."""
MENDED = "running"


# Roles


def _rows(run: ReportRun) -> list[tuple[str, list[list[Any]], float | None]]:
    """Name, spans and share of time in training of each cell, then of each standalone engine."""
    found = run.panels["roles"]
    cells = [
        (
            f"cell {cell['cell']}, core" if cell["kind"] == "core" else f"cell {cell['cell']}",
            cell["spans"],
            cell["training_share"],
        )
        for cell in found["cells"]
    ]
    return cells + [
        (f"engine {engine['engine']}", engine["spans"], None) for engine in found["engines"]
    ]


def _named(found: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """What each cell, and then each standalone engine, has under a key."""
    yield from ((f"cell {cell['cell']}", cell[key]) for cell in found["cells"])
    yield from ((f"engine {engine['engine']}", engine[key]) for engine in found["engines"])


def _timeline(runs: Sequence[ReportRun]) -> Figure:
    heights = [min(MOST_ROWS_IN, max(LEAST_ROWS_IN, ROW_IN * len(_rows(run)))) for run in runs]
    made, grid = stacked(heights, beside_in=0.55 * len(runs) + 0.5)
    units = time_axes(grid, [run.end_s for run in runs])
    for axes, run, unit_s in zip(grid, runs, units, strict=True):
        _roles(axes, run, unit_s)
        axes.set_title(f"{run.label}: {spoken(run.end_s)}")
    return made


def _roles(axes: Axes, run: ReportRun, unit_s: float) -> None:
    rows = _rows(run)
    for place, (_, spans, share) in enumerate(rows):
        for state, those in groupby(sorted(spans, key=itemgetter(2)), key=itemgetter(2)):
            bars = [(since / unit_s, (until - since) / unit_s) for since, until, _ in those]
            axes.broken_barh(bars, (place - 0.42, 0.84), **filled(state))
        if share is not None and len(rows) <= MOST_NAMED_ROWS:
            note(axes, f"{share:.0%}", (1.0, place), xycoords=("axes fraction", "data"))
    marks = list(_marks(axes, run, unit_s))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    bars_of(axes, [name for name, _, _ in rows], stride=-(-len(rows) // MOST_NAMED_ROWS))
    met = {state for _, spans, _ in rows for _, _, state in spans}
    states = [state for state in run.panels["roles"]["states"] if state in met]
    legend(axes, [*(Patch(label=state, **filled(state)) for state in states), *marks])


def _marks(axes: Axes, run: ReportRun, unit_s: float) -> Iterator[Line2D]:
    """Lines at steps and publications, and what a legend shows of them."""
    for word, times in (
        ("step", run.panels["steps"]["at_s"]),
        ("publication", run.panels["publications"]["at_s"]),
    ):
        if 0 < len(times) <= MOST_STEP_LINES:
            look: dict[str, Any] = {
                "color": colour(word),
                "linewidth": (0.7 if word == "step" else 1.2) * min(1.0, FEW_LINES / len(times)),
                "linestyle": "-" if word == "step" else (0, (3, 2)),
            }
            for at_s in times:
                axes.axvline(at_s / unit_s, alpha=0.75, **look)
            yield Line2D([], [], label=word, **look)


def _timeline_says(run: ReportRun) -> str:
    rows = _rows(run)
    shares = [share for _, _, share in rows if share is not None]
    satellites = shares[1:]
    text = f"{many(len(rows), 'row')} over {spoken(run.end_s)}"
    if not shares:
        return f"{text}."
    text += f"; the core trained for {shares[0]:.0%} of the time"
    if satellites:
        least, most = f"{min(satellites):.0%}", f"{max(satellites):.0%}"
        text += f", satellites for {least if least == most else f'{least} to {most}'} of theirs"
    return f"{text}."


# The account of time


def _idle(runs: Sequence[ReportRun]) -> Figure:
    is_alone = runs[0].place is None
    bars = _by_cell(runs[0]) if is_alone else {run.label: _parts(run) for run in runs}
    heights = [0.26 * len(bars) + 0.1, *[1.4] * len(runs)]
    made, grid = stacked(heights, beside_in=0.4 * len(runs) + 1.1)
    _totals(grid[0], bars)
    units = time_axes(grid[1:], [run.end_s for run in runs])
    for axes, run, unit_s in zip(grid[1:], runs, units, strict=True):
        _over_time(axes, run, unit_s)
        axes.set_title("over time" if is_alone else f"{run.label}, over time")
    return made


def _parts(run: ReportRun, seconds: Sequence[float] | None = None) -> dict[str, float]:
    """Part of time by cause, as far as there was any: of all, or of one engine's seconds."""
    found = run.panels["idle"]
    spent = found["total"] if seconds is None else seconds
    whole = sum(spent)
    return {cause: one / whole for cause, one in zip(found["causes"], spent, strict=True) if one}


def _by_cell(run: ReportRun) -> dict[str, dict[str, float]]:
    """Of each cell and engine where there are few, and of all."""
    found = run.panels["idle"]
    rows = dict(_named(found, "seconds"))
    if len(rows) > MOST_NAMED_ROWS:
        rows = {}
    return {name: _parts(run, one) for name, one in (rows | {"all": found["total"]}).items()}


def _totals(axes: Axes, bars: Mapping[str, Mapping[str, float]]) -> None:
    met: dict[str, None] = {}
    for place, parts in enumerate(bars.values()):
        reached = 0.0
        for cause, part in parts.items():
            met[cause] = None
            axes.barh(place, part, left=reached, height=0.72, **filled(cause))
            if part >= 0.05:
                axes.text(
                    reached + part / 2,
                    place,
                    f"{part:.0%}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    bbox={"boxstyle": "round,pad=0.15", "linewidth": 0, "facecolor": GROUND},
                )
            reached += part
    bars_of(axes, list(bars))
    axes.set_xlim(0, 1)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    percent(axes, x=True)
    legend(axes, [Patch(label=one, **filled(one)) for one in met], most=5)


def _over_time(axes: Axes, run: ReportRun, unit_s: float) -> None:
    over = run.panels["idle"]["over_time"]
    causes = [cause for cause, spent in over["seconds"].items() if any(spent)]
    sums = [sum(one) or 1.0 for one in zip(*over["seconds"].values(), strict=True)]
    edges = [at_s / unit_s for at_s in [*over["at_s"], over["until_s"]]]
    lower = [0.0] * len(sums)
    for cause in causes:
        upper = [
            below + spent / whole
            for below, spent, whole in zip(lower, over["seconds"][cause], sums, strict=True)
        ]
        axes.stairs(upper, edges, baseline=lower, fill=True, **filled(cause))
        lower = upper
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    percent(axes)


def _idle_says(run: ReportRun) -> str:
    parts = sorted(_parts(run).items(), key=lambda one: -one[1])
    named = ", ".join(f"{cause} {part:.0%}" for cause, part in parts if part >= 0.005)
    whole = sum(run.panels["idle"]["total"])
    return f"Of {spoken(whole)} of all cells and engines: {named}."


def _idle_tables(run: ReportRun) -> list[ReportTable]:
    found = run.panels["idle"]
    met = [place for place, spent in enumerate(found["total"]) if spent > 0]
    named = [*_named(found, "seconds"), ("all", found["total"])]
    by_cause = ReportTable(
        caption="Parts of time by cause",
        head=["", *(found["causes"][place] for place in met)],
        rows=[
            [name, *(percentage(seconds[place] / (sum(seconds) or 1.0)) for place in met)]
            for name, seconds in named
        ],
    )
    phases = [
        [f"{way} training", phase, took(seconds)]
        for way, times in (
            ("into", run.panels["transitions"]["phases"]["into"]),
            ("home from", run.panels["transitions"]["phases"]["home"]),
        )
        for phase, seconds in times.items()
    ]
    switching = ReportTable(
        caption="Phases of changes of role",
        head=["way", "phase", "mean time"],
        rows=phases,
        num_words=2,
    )
    return [by_cause, switching] if phases else [by_cause]


# Faults


def _faults(runs: Sequence[ReportRun]) -> Figure:
    kinds = [sorted(run.panels["faults"]["counts"]) for run in runs]
    heights = [0.3 * max(1, len(kind)) + 0.1 for kind in kinds]
    made, grid = stacked(heights, beside_in=0.5 * len(runs) + 0.5)
    units = time_axes(grid, [run.end_s for run in runs])
    for axes, run, named, unit_s in zip(grid, runs, kinds, units, strict=True):
        for fault in run.panels["faults"]["rows"]:
            place, at = named.index(fault["kind"]), fault["at_s"] / unit_s
            if fault["repaired_s"] is not None:
                until = at + fault["repaired_s"] / unit_s
                axes.plot([at, until], [place] * 2, color=colour(MENDED), linewidth=5, alpha=0.7)
            axes.plot(at, place, "x", color=colour("crashed"), markersize=6)
        bars_of(axes, named)
        axes.set_title(run.label)
    handles = [
        Line2D([], [], color=colour("crashed"), marker="x", linestyle="", label="fault"),
        Line2D([], [], color=colour(MENDED), linewidth=5, alpha=0.7, label="until it was mended"),
    ]
    legend(grid[0], handles)
    return made


def _faults_says(run: ReportRun) -> str:
    found = run.panels["faults"]
    mended = [
        row.mended_at_s - row.at_s for row in run.history.faults.rows if row.mended_at_s is not None
    ]
    named = ", ".join(f"{number} {kind}" for kind, number in sorted(found["counts"].items()))
    text = f"{many(sum(found['counts'].values()), 'fault')}: {named}"
    if mended:
        text += f"; {len(mended)} mended, the slowest after {spoken(max(mended))}"
    return f"{text}."


def _faults_tables(run: ReportRun) -> list[ReportTable]:
    rows = run.panels["faults"]["rows"]
    return [
        ReportTable(
            caption="Faults and how long until they were mended"
            + (f", the last {MOST_LISTED}" if len(rows) > MOST_LISTED else ""),
            head=["what", "in words", "at", "mended after"],
            rows=[
                [
                    row["kind"],
                    row["text"],
                    spoken(row["at_s"]),
                    "" if row["repaired_s"] is None else spoken(row["repaired_s"]),
                ]
                for row in rows[-MOST_LISTED:]
            ],
            num_words=2,
        )
    ]


TIMELINE = ReportPart(
    name="timeline",
    title="Who did what when",
    how="A row for each cell, coloured by what it did; at the right is its part of time in "
    "training. Lines are steps and publications.",
    needs=lambda run: run.end_s > 0,
    draw=_timeline,
    says=_timeline_says,
)
IDLE = ReportPart(
    name="idle",
    title="Where time went",
    how="All time of cells and engines by cause: above in sum, below over the run.",
    needs=lambda run: sum(run.panels["idle"]["total"]) > 0,
    draw=_idle,
    says=_idle_says,
    tables=_idle_tables,
)
FAULTS = ReportPart(
    name="faults",
    title="Faults and recoveries",
    how="A cross is a fault, a bar the time until it was mended.",
    needs=lambda run: bool(run.panels["faults"]["rows"]),
    draw=_faults,
    says=_faults_says,
    tables=_faults_tables,
)


def _use(runs: Sequence[ReportRun]) -> Figure:
    panels = [
        (run, draw)
        for run in runs
        for draw in ([_cores, _busy] if run.panels["use"]["has_devices"] else [_cores])
    ]
    made, grid = stacked([1.9] * len(panels), beside_in=0.4)
    units = time_axes(grid, [run.end_s for run, _ in panels])
    for axes, (run, draw), unit_s in zip(grid, panels, units, strict=True):
        draw(axes, run, unit_s)
        title = "cores in use" if draw is _cores else "part of time accelerators worked"
        axes.set_title(title if run.place is None else f"{run.label}: {title}")
    return made


def _cores(axes: Axes, run: ReportRun, unit_s: float) -> None:
    found = run.panels["use"]
    over = found["over_time"]
    edges = [at_s / unit_s for at_s in (over["from_s"][0], *over["at_s"])]
    lower = [0.0] * len(over["at_s"])
    handles = []
    for who in (*found["roles"], *found["others"]):
        spent = [0.0 if cores is None else cores for cores in over["cores"][who]]
        if any(spent):
            upper = [below + one for below, one in zip(lower, spent, strict=True)]
            axes.stairs(upper, edges, baseline=lower, fill=True, **filled(who))
            handles.append(Patch(label=who, **filled(who)))
            lower = upper
    from_zero(axes)
    legend(axes, handles)


def _busy(axes: Axes, run: ReportRun, unit_s: float) -> None:
    found = run.panels["use"]
    over = found["over_time"]
    at = [at_s / unit_s for at_s in over["at_s"]]
    for role in found["roles"]:
        busy = over["busy"][role]
        if any(value is not None for value in busy):
            shade = filled(role)["facecolor"]
            known = [(when, one) for when, one in zip(at, busy, strict=True) if one is not None]
            axes.plot(*zip(*known, strict=True), color=shade, label=role)
    axes.set_ylim(0, 1.02)
    percent(axes)
    legend(axes)


def _says(run: ReportRun) -> str:
    found = run.panels["use"]
    parts = [
        f"{one['cores']:.2f} cores {role}"
        for role, one in found["total"].items()
        if one["cores"] is not None
    ]
    others = [
        f"{who} {one['cores']:.2f}"
        for who, one in found["beside"].items()
        if one["cores"] is not None
    ]
    text = f"A cell used {', '.join(parts)} on average" if parts else "Cells were not measured"
    text += f"; beside them, in cores: {', '.join(others)}." if others else "."
    return text if found["has_devices"] else f"{text} Accelerators were not measured."


def _tables(run: ReportRun) -> list[ReportTable]:
    found = run.panels["use"]
    named = [*_named(found, "roles"), ("all", found["total"])]
    rows = [
        [name, role, number(one["cores"]), percentage(one["busy"])]
        for name, roles in named
        for role, one in roles.items()
    ]
    rows += [[who, "", number(one["cores"]), ""] for who, one in found["beside"].items()]
    head = ["who", "role", "cores", "accelerators"]
    return [ReportTable(caption="Use by role", head=head, rows=rows, num_words=2)]


USE = ReportPart(
    name="use",
    title="Use of processors and accelerators",
    how="Cores that the processes of the run kept busy, by what their cells did then, and by who "
    "else was there. What was not measured is not drawn.",
    needs=lambda run: bool(run.panels["use"]["is_measured"]),
    draw=_use,
    says=_says,
    tables=_tables,
)
