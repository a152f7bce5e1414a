"""The picture of what a placement saved: the recorded work simulated under each of them."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gyre.observability.report.part import ABSENT, ReportPart, ReportTable, number
from gyre.observability.report.plotting import FAINT, figure, run_colour, time_axes
from gyre.observability.report.told import ReportRun
from gyre.observability.terminal.summary import ELASTIC, beside
from gyre.observability.terminal.text import MINUTE_S, spoken
from gyre.observability.what_if import SimulatedPlacement

BAR_IN = 0.3
FOR_NUMBERS = 1.17
"""An axis is so much longer than its longest bar, which has its number behind it."""
RECORDED = "as recorded"


def minutes_of(run: ReportRun, placement: str) -> float | None:
    return next((one.minutes for one in run.compared if one.placement == placement), None)


def ratio(run: ReportRun, placement: str) -> float | None:
    """How many times as long as Elastic it takes."""
    elastic, other = minutes_of(run, ELASTIC), minutes_of(run, placement)
    return other / elastic if elastic and other else None


def _steps(run: ReportRun) -> int | None:
    """That were simulated."""
    return next((one.steps for one in run.compared if one.steps is not None), None)


def live_minutes(run: ReportRun) -> float | None:
    """Of the run itself, to the step that the simulations went to."""
    steps = _steps(run)
    taken = run.panels["steps"]["at_s"]
    return taken[steps - 1] / MINUTE_S if steps and len(taken) >= steps else None


def _bars(run: ReportRun) -> list[tuple[str, float]]:
    found = [(one.placement, one.minutes) for one in run.compared if one.minutes is not None]
    live = live_minutes(run)
    return found if live is None else [*found, (RECORDED, live)]


def _saved(runs: Sequence[ReportRun]) -> Figure:
    heights = [BAR_IN * len(_bars(run)) for run in runs]
    made = figure(sum(heights) + 0.42 * len(runs) + 0.45)
    grid = list(made.subplots(len(runs), 1, squeeze=False, height_ratios=heights)[:, 0])
    longest_s = [max(minutes for _, minutes in _bars(run)) * MINUTE_S for run in runs]
    units = time_axes(grid, [one * FOR_NUMBERS for one in longest_s])
    for axes, run, unit_s in zip(grid, runs, units, strict=True):
        _run(axes, run, unit_s / MINUTE_S)
        axes.set_title(f"{run.label}: time to step {_steps(run)}")
    return made


def _run(axes: Axes, run: ReportRun, unit: float) -> None:
    bars = _bars(run)
    shade = run_colour(run.place, "training")
    elastic = minutes_of(run, ELASTIC)
    for place, (name, minutes) in enumerate(bars):
        is_own = name in (ELASTIC, RECORDED)
        axes.barh(place, minutes / unit, height=0.72, color=shade, alpha=1.0 if is_own else 0.45)
        times = f"  {minutes / elastic:.2f}×" if elastic else ""
        axes.annotate(
            f"{spoken(minutes * MINUTE_S)}{times}",
            (minutes / unit, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=FAINT,
        )
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")


def _says(run: ReportRun) -> str:
    elastic = minutes_of(run, ELASTIC)
    found = list(beside(run.compared, elastic)) if elastic else []
    text = f"Simulated, elastic takes {' and '.join(found)}." if found else ""
    live = live_minutes(run)
    if live is not None and elastic and not run.is_simulated:
        text += f" The run itself took {spoken(live * MINUTE_S)} to the same step, "
        text += f"{live / elastic:.2f} times what was simulated."
    return text.strip() or "No two placements can be compared."


def _why_not(run: ReportRun) -> str:
    found = [f"{one.placement}: {one.how}" for one in run.compared]
    return "; ".join(found) or "its journal does not make a run to its end"


def _tables(run: ReportRun) -> list[ReportTable]:
    elastic = minutes_of(run, ELASTIC)
    rows = [_row(one, elastic) for one in run.compared]
    if (live := live_minutes(run)) is not None:
        rows.append(_row(SimulatedPlacement(placement=RECORDED, how="", minutes=live), elastic))
    head = ["placement", "pace, or why there is no time", "time", "ratio", "staleness"]
    return [
        ReportTable(caption="The same work under each placement", head=head, rows=rows, num_words=2)
    ]


def _row(one: SimulatedPlacement, elastic: float | None) -> list[str]:
    times = f"{one.minutes / elastic:.2f}" if one.minutes is not None and elastic else ABSENT
    took = ABSENT if one.minutes is None else spoken(one.minutes * MINUTE_S)
    return [one.placement, one.how, took, times, number(one.staleness)]


SAVED = ReportPart(
    name="speedup",
    title="Speed-up against other placements",
    how="How long the recorded executions, evaluations, switches and updates take when they are "
    "simulated under each placement on the same machines; × is against elastic.",
    needs=lambda run: bool(_bars(run)),
    why_not=_why_not,
    draw=_saved,
    says=_says,
    tables=_tables,
)
