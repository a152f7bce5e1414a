"""Pictures of runs: the roles of cells, the waterlevel under its capacity, and groups ready."""

from collections.abc import Sequence
from typing import Any, BinaryIO, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gyre.simulator.report import ScenarioRuns
from gyre.simulator.result import Role, SimulationResult
from gyre.simulator.workload import HOUR_S

COLOURS = {
    Role.ROLLOUT: "#8ecae6",
    Role.ENTERING: "#ffd166",
    Role.TRAINING: "#d1495b",
    Role.LEAVING: "#edae49",
    Role.WAITING: "#bdbdbd",
    Role.FENCED: "#7d7d7d",
    Role.DEAD: "#222222",
}
WIDTH_IN, PANEL_IN = 10.0, 5.0
DOTS_PER_INCH = 120
ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "borderaxespad": 0,
    "fontsize": "small",
    "frameon": False,
}
"""A legend over its panel's right end, where it hides nothing."""
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "gyre", "svg.fonttype": "none"}
"""The same runs give the same bytes, and text in a drawing stays text."""


def figure(rans: Sequence[ScenarioRuns]) -> Figure:
    """Three panels for each scenario's first run, all on one scale of hours."""
    made = Figure(figsize=(WIDTH_IN, PANEL_IN * len(rans)), layout="constrained")
    grid = made.subplots(3 * len(rans), 1, sharex=True, height_ratios=[3, 3, 2] * len(rans))
    for number, ran in enumerate(rans):
        roles, levels, ready = grid[3 * number : 3 * number + 3]
        record = ran.records[0]
        roles.set_title(f"{ran.name}: {record.hours:.2f} h", loc="left")
        _roles(roles, record, standalone=len(ran.scenario.shape.standalone_capacities))
        _levels(levels, record)
        _ready(ready, record)
    grid[-1].set_xlim(0, max(ran.records[0].end_s for ran in rans) / HOUR_S)
    grid[-1].set_xlabel("hours")
    return made


def save(made: Figure, file: BinaryIO, *, kind: Literal["png", "svg"]) -> None:
    """Into an open file, without the time of day."""
    when = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context(SETTINGS):
        made.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=when)


def _roles(axes: Axes, record: SimulationResult, *, standalone: int) -> None:
    """A bar for each cell, and beneath them one for each engine that only serves."""
    for cell, intervals in enumerate(record.roles):
        for role, colour in COLOURS.items():
            spans = [
                (interval.start_s / HOUR_S, (interval.end_s - interval.start_s) / HOUR_S)
                for interval in intervals
                if interval.role is role
            ]
            if spans:
                axes.broken_barh(spans, (cell - 0.45, 0.9), facecolors=colour)
    lines = len(record.roles) + standalone
    for engine in range(len(record.roles), lines):
        whole = [(0.0, record.end_s / HOUR_S)]
        axes.broken_barh(whole, (engine - 0.45, 0.9), facecolors=COLOURS[Role.ROLLOUT])
    for step in record.steps:
        axes.axvline(step.at_s / HOUR_S, color="black", linewidth=0.4, alpha=0.5)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_ylabel("cell, then standalone" if standalone else "cell")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    met = {interval.role for intervals in record.roles for interval in intervals}
    met |= {Role.ROLLOUT} if standalone else set()
    shown = [
        Patch(color=colour, label=role.value) for role, colour in COLOURS.items() if role in met
    ]
    axes.legend(handles=shown, ncols=len(shown), **ABOVE)


def _levels(axes: Axes, record: SimulationResult) -> None:
    hours = [level.at_s / HOUR_S for level in record.levels]
    drawn = {
        "waterlevel": ([level.waterlevel for level in record.levels], "#1d3557"),
        "running": ([level.running for level in record.levels], "#2a9d8f"),
        "capacity": ([level.capacity for level in record.levels], "#d1495b"),
    }
    for label, (values, colour) in drawn.items():
        axes.step(hours, values, where="post", label=label, color=colour, linewidth=1.0)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("executions")
    axes.legend(ncols=len(drawn), **ABOVE)


def _ready(axes: Axes, record: SimulationResult) -> None:
    hours = [level.at_s / HOUR_S for level in record.levels]
    ready = [level.num_ready for level in record.levels]
    axes.fill_between(hours, ready, step="post", color="#8d99ae")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ready groups")
