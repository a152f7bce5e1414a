"""The picture of use: processors and accelerators by what cells did, and who else was there."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gyre.observability.report.part import ReportPart, ReportTable, number, percentage
from gyre.observability.report.plotting import figure, filled, from_zero, legend, percent, time_axes
from gyre.observability.report.told import ReportRun


def _use(runs: Sequence[ReportRun]) -> Figure:
    panels = [(run, what) for run in runs for what in _measured(run)]
    made = figure(1.9 * len(panels) + 0.4)
    grid = list(made.subplots(len(panels), 1, squeeze=False)[:, 0])
    units = time_axes(grid, [run.end_s for run, _ in panels])
    for axes, (run, what), unit_s in zip(grid, panels, units, strict=True):
        draw = _cores if what == "cores" else _busy
        draw(axes, run, unit_s)
        title = "cores in use" if what == "cores" else "part of time accelerators worked"
        axes.set_title(title if run.place is None else f"{run.label}: {title}")
    return made


def _measured(run: ReportRun) -> Iterator[str]:
    yield "cores"
    if run.panels["use"]["has_devices"]:
        yield "busy"


def _cores(axes: Axes, run: ReportRun, unit_s: float) -> None:
    found = run.panels["use"]
    over = found["over_time"]
    edges = [at_s / unit_s for at_s in (over["from_s"][0], *over["at_s"])]
    lower = [0.0] * len(over["at_s"])
    handles = []
    for who in (*found["roles"], *found["others"]):
        spent = [0.0 if one is None else one for one in over["cores"][who]]
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
        if any(one is not None for one in busy):
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
    named = [
        *((f"cell {one['cell']}", one["roles"]) for one in found["cells"]),
        *((f"engine {one['engine']}", one["roles"]) for one in found["engines"]),
        ("all", found["total"]),
    ]
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
