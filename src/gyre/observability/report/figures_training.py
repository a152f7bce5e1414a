"""Figures of learning and of what placement saved."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gyre.observability.report.model import (
    ABSENT,
    ReportPart,
    ReportRun,
    ReportTable,
    column,
    count,
    number,
)
from gyre.observability.report.plotting import (
    ALIKE,
    FAINT,
    bars_of,
    figure,
    filled,
    from_zero,
    legend,
    note,
    numbers,
    run_colour,
    run_dots,
    run_line,
    stacked,
    time_axes,
    unit_of,
    whole_numbers,
)
from gyre.observability.terminal.colors import colour
from gyre.observability.terminal.summary import ELASTIC, beside
from gyre.observability.terminal.text import MINUTE_S, many, spoken
from gyre.observability.what_if import SimulatedPlacement, minutes_of, steps_of

MOST_BARS = 120
"""Steps whose times are bars."""
ACROSS = 3
"""Panels of the objective in a row."""


def _has(run: ReportRun, *names: str) -> bool:
    steps = run.panels["steps"]
    return any(value is not None for name in names for value in steps[name])


def _curve(
    axes: Axes, runs: Sequence[ReportRun], name: str, word: str, label: str | None = None
) -> None:
    """A column of steps, for each run that has any of it."""
    for run in runs:
        steps = run.panels["steps"]
        if _has(run, name):
            axes.plot(
                steps["step"],
                numbers(steps[name]),
                label=label if run.place is None else run.label,
                **run_line(run.place, word),
                **run_dots(run.place, len(steps["step"])),
            )


def _by_step(axes: Axes) -> None:
    whole_numbers(axes, x=True)
    axes.set_xlabel("step")


# Reward and evaluation


def _reward(runs: Sequence[ReportRun]) -> Figure:
    made = figure(2.9)
    measured = any(run.panels["evaluation"]["mean"] for run in runs)
    axes = made.subplots(1, 2, squeeze=False)[0] if measured else [made.subplots()]
    _curve(axes[0], runs, "reward", "reward")
    _by_step(axes[0])
    axes[0].set_title("mean reward of each step")
    if measured:
        _rounds(axes[1], runs)
    if runs[0].place is not None:
        for axis in axes:
            legend(axis, most=2)
    return made


def _rounds(axes: Axes, runs: Sequence[ReportRun]) -> None:
    for run in runs:
        found = run.panels["evaluation"]
        if any(mean is not None for mean in found["mean"]):
            axes.errorbar(
                found["version"],
                numbers(found["mean"]),
                yerr=[0.0 if error is None else error for error in found["standard_error"]],
                capsize=2.5,
                label=run.label,
                **run_line(run.place, "evaluation"),
                **run_dots(run.place, len(found["version"])),
            )
    whole_numbers(axes, x=True)
    axes.set_xlabel("version of the weights")
    axes.set_title("held-out score")


def _reward_says(run: ReportRun) -> str:
    found = column(run, "reward")
    parts = []
    if found:
        best = max(found)
        at = run.panels["steps"]["reward"].index(best)
        parts.append(
            f"The mean reward goes from {found[0]:.3f} at the first step to {found[-1]:.3f} at the "
            f"last; the best is {best:.3f} at step {run.panels['steps']['step'][at]}."
        )
    rounds = run.panels["evaluation"]
    scores = [
        (version, mean)
        for version, mean in zip(rounds["version"], rounds["mean"], strict=True)
        if mean is not None
    ]
    if scores:
        (first, began), (last, became) = scores[0], scores[-1]
        text = f"The held-out score is {began:.3f} at version {first}"
        parts.append(f"{text}." if len(scores) == 1 else f"{text}, {became:.3f} at version {last}.")
    return " ".join(parts)


def _reward_tables(run: ReportRun) -> list[ReportTable]:
    found = run.panels["evaluation"]
    if not found["version"]:
        return []
    names = ("version", "mean", "standard_error", "num_valid", "num_tasks")
    rows = [
        [str(row[0]), *(number(value) for value in row[1:])]
        for row in zip(*(found[name] for name in names), strict=True)
    ]
    head = ["version", "mean score", "standard error", "valid", "tasks"]
    return [ReportTable(caption="Held-out evaluation", head=head, rows=rows)]


# The objective

_OBJECTIVE: tuple[tuple[str, str, str], ...] = (
    ("loss", "loss", "objective loss"),
    ("gradient_norm", "gradient norm", "objective gradient norm"),
    ("mean_ratio", "mean ratio of policies", "objective ratio of new to old policy"),
    ("max_gap", "gap in log-probability", "objective mismatch"),
)
_CLIPPED: tuple[tuple[str, str, Literal["-", "--", ":"]], ...] = (
    ("raised_clipped", "raised targets", "-"),
    ("lowered_clipped", "lowered targets", "--"),
    ("capped", "all, capped", ":"),
)
_MEASURES = [name for name, _, _ in (*_OBJECTIVE, *_CLIPPED)]


def _objective(runs: Sequence[ReportRun]) -> Figure:
    shown = [column for column in _OBJECTIVE if any(_has(run, column[0]) for run in runs)]
    is_clipped = any(_has(run, name) for run in runs for name, _, _ in _CLIPPED)
    num = len(shown) + is_clipped
    made = figure(2.1 * -(-num // ACROSS) + 0.15)
    grid = list(made.subplots(-(-num // ACROSS), ACROSS, squeeze=False).flat)
    for (name, title, word), axes in zip(shown, grid, strict=False):
        _curve(axes, runs, name, word)
        axes.set_title(title)
        _by_step(axes)
        if name == "gradient_norm":
            _mark_clipped(axes, runs)
    if is_clipped:
        _clipped(grid[num - 1], runs)
    for axes in grid[num:]:
        axes.set_axis_off()
    named = [*grid[0].get_legend_handles_labels()[0], *(_dashes(runs) if is_clipped else ())]
    if named:
        free = grid[num] if num < len(grid) else grid[num - 1]
        free.legend(handles=named, loc="center left" if num < len(grid) else "best")
    return made


def _mark_clipped(axes: Axes, runs: Sequence[ReportRun]) -> None:
    for run in runs:
        steps = run.panels["steps"]
        marked = [
            (step, norm)
            for step, norm, is_clipped in zip(
                steps["step"], steps["gradient_norm"], steps["is_clipped"], strict=True
            )
            if is_clipped and norm is not None
        ]
        if marked:
            axes.plot(
                *zip(*marked, strict=True),
                linestyle="",
                marker="v",
                markersize=5,
                color=colour("clipped"),
            )


def _clipped(axes: Axes, runs: Sequence[ReportRun]) -> None:
    for run in runs:
        steps = run.panels["steps"]
        for name, _, dash in _CLIPPED:
            if _has(run, name):
                shade = run_colour(run.place, "objective clipped targets")
                axes.plot(steps["step"], numbers(steps[name]), color=shade, linestyle=dash)
    axes.set_title("part of targets clipped")
    axes.set_ylim(-0.02, max(0.1, axes.get_ylim()[1]))
    _by_step(axes)


def _dashes(runs: Sequence[ReportRun]) -> Iterator[Line2D]:
    """What a legend shows of the parts that are clipped; of several runs hue tells which."""
    shade = colour("objective clipped targets") if runs[0].place is None else FAINT
    for name, label, dash in _CLIPPED:
        if any(_has(run, name) for run in runs):
            yield Line2D([], [], color=shade, linestyle=dash, label=f"part of {label}")


def _objective_says(run: ReportRun) -> str:
    parts = []
    if found := column(run, "loss"):
        parts.append(f"the loss of the last step is {found[-1]:.4g}")
    if found := column(run, "gradient_norm"):
        clipped = sum(bool(is_clipped) for is_clipped in run.panels["steps"]["is_clipped"])
        parts.append(
            f"the gradient norm is between {min(found):.3g} and {max(found):.3g}, clipped at "
            f"{many(clipped, 'step')}"
        )
    if found := column(run, "max_gap"):
        parts.append(f"trainer and engine differ by at most {max(found):.3g} in log-probability")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else "Nothing was measured."


def _steps_tables(
    *columns: tuple[str, str, Callable[[Any], str]],
) -> Callable[[ReportRun], list[ReportTable]]:
    """A table of steps with the columns that a run has."""

    def tables(run: ReportRun) -> list[ReportTable]:
        steps = run.panels["steps"]
        shown = [column for column in columns if _has(run, column[0])]
        rows = [
            [str(step), *(how(steps[name][at]) for name, _, how in shown)]
            for at, step in enumerate(steps["step"])
        ]
        head = ["step", *(title for _, title, _ in shown)]
        return [ReportTable(caption="Step by step", head=head, rows=rows)] if rows and shown else []

    return tables


# Steps


def _pace(runs: Sequence[ReportRun]) -> Figure:
    drawn = [
        _took,
        *([_passes] if any(_has(run, "claim_s") for run in runs) else []),
        *([_tokens] if any(_has(run, "tokens") for run in runs) else []),
    ]
    made = figure(2.7)
    grid = made.subplots(1, len(drawn), squeeze=False)[0]
    for draw, axes in zip(drawn, grid, strict=True):
        draw(axes, runs)
        _by_step(axes)
    if runs[0].place is not None:
        legend(grid[-1], most=2)
    return made


def _took(axes: Axes, runs: Sequence[ReportRun]) -> None:
    longest = [max(run.panels["steps"]["took_s"]) for run in runs]
    unit_s, unit = unit_of(max(longest))
    for run in runs:
        steps = run.panels["steps"]
        took = [took_s / unit_s for took_s in steps["took_s"]]
        if run.place is None and len(took) <= MOST_BARS:
            axes.bar(steps["step"], took, width=0.8, **filled("step time"))
            axes.set_xlim(0.4, len(took) + 0.6)
        else:
            look = run_line(run.place, "step time") | run_dots(run.place, len(took))
            axes.plot(steps["step"], took, label=run.label, **look)
    if max(longest) > ALIKE * min(longest):
        axes.set_yscale("log")
    else:
        from_zero(axes)
    axes.set_title(f"{unit} of each step")


def _passes(axes: Axes, runs: Sequence[ReportRun]) -> None:
    unit_s, unit = unit_of(max(max(column(run, "claim_s"), default=0.0) for run in runs))
    for run in runs:
        steps = run.panels["steps"]
        spent = [None if claim_s is None else claim_s / unit_s for claim_s in steps["claim_s"]]
        look = run_line(run.place, "step time") | run_dots(run.place, len(spent))
        axes.plot(steps["step"], numbers(spent), label=run.label, **look)
    from_zero(axes)
    axes.set_title(f"{unit} of passes, all cells")


def _tokens(axes: Axes, runs: Sequence[ReportRun]) -> None:
    if runs[0].place is None:
        _curve(axes, runs, "row_tokens", "row tokens", "one by one")
        _curve(axes, runs, "tokens", "tokens", "trained")
        _curve(axes, runs, "targets", "targets", "targets")
        legend(axes)
        axes.set_title("tokens")
    else:
        _curve(axes, runs, "tokens", "tokens")
        axes.set_title("tokens trained")
    from_zero(axes)
    whole_numbers(axes, y=True)


def _pace_says(run: ReportRun) -> str:
    took = run.panels["steps"]["took_s"]
    longest = max(took)
    text = (
        f"{many(len(took), 'step')} of {spoken(sum(took) / len(took))} on average; step "
        f"{took.index(longest) + 1} took longest, {spoken(longest)}"
    )
    rows, packed = sum(column(run, "row_tokens")), sum(column(run, "tokens"))
    if rows:
        text += f"; sharing prefixes left {1 - packed / rows:.0%} of {rows:,.0f} tokens uncomputed"
    return f"{text}."


REWARD = ReportPart(
    name="reward",
    title="Reward and evaluation",
    how="What executions were worth when they were trained on, and what the weights score on "
    "tasks that are held out, with standard errors.",
    needs=lambda run: _has(run, "reward") or bool(run.panels["evaluation"]["version"]),
    draw=_reward,
    says=_reward_says,
    tables=_reward_tables,
)
OBJECTIVE = ReportPart(
    name="objective",
    title="Loss, clipping and mismatch",
    how="What each update was made of. The ratio is that of the new policy to the one that "
    "sampled; targets are raised or lowered by the sign of their advantage. The gap is the largest "
    "difference between a token's log-probability in the trainer and in the engine that sampled "
    "it. A triangle is a gradient that was clipped.",
    needs=lambda run: _has(run, *_MEASURES),
    draw=_objective,
    says=_objective_says,
    tables=_steps_tables(
        ("loss", "loss", number),
        ("gradient_norm", "gradient norm", number),
        ("is_clipped", "clipped", lambda one: "yes" if one else ""),
        ("mean_ratio", "mean ratio", lambda one: number(one, 5)),
        ("raised_clipped", "raised clipped", number),
        ("lowered_clipped", "lowered clipped", number),
        ("capped", "capped", number),
        ("max_gap", "largest gap", number),
    ),
)
PACE = ReportPart(
    name="steps",
    title="Time and tokens of steps",
    how="From one update to the next; passes are forward and backward. Tokens that trajectories "
    "share are trained once; the grey line is what they would have had one by one.",
    needs=lambda run: bool(run.panels["steps"]["step"]),
    draw=_pace,
    says=_pace_says,
    tables=_steps_tables(
        ("at_s", "at", spoken),
        ("took_s", "took", spoken),
        ("reward", "reward", number),
        ("staleness", "staleness", number),
        ("claim_s", "passes", lambda one: ABSENT if one is None else spoken(one)),
        ("num_training", "cells in training", str),
        ("num_void", "void groups", str),
        ("trajectories", "trajectories", count),
        ("tokens", "tokens", count),
        ("row_tokens", "one by one", count),
        ("targets", "targets", count),
    ),
)


BAR_IN = 0.3
FOR_NUMBERS = 1.17
"""An axis is so much longer than its longest bar, which has its number behind it."""
RECORDED = "as recorded"


def ratio(run: ReportRun, placement: str) -> float | None:
    """How many times as long as Elastic it takes."""
    elastic, other = minutes_of(run.compared, ELASTIC), minutes_of(run.compared, placement)
    return other / elastic if elastic and other else None


def live_minutes(run: ReportRun) -> float | None:
    """Of the run itself, to the step that the simulations went to."""
    steps = steps_of(run.compared)
    taken = run.panels["steps"]["at_s"]
    return taken[steps - 1] / MINUTE_S if steps and len(taken) >= steps else None


def _bars(run: ReportRun) -> list[tuple[str, float]]:
    found = [
        (comparison.placement, comparison.minutes)
        for comparison in run.compared
        if comparison.minutes is not None
    ]
    live = live_minutes(run)
    return found if live is None else [*found, (RECORDED, live)]


def _saved(runs: Sequence[ReportRun]) -> Figure:
    heights = [BAR_IN * len(_bars(run)) for run in runs]
    made, grid = stacked(heights, beside_in=0.42 * len(runs) + 0.45)
    longest_s = [max(minutes for _, minutes in _bars(run)) * MINUTE_S for run in runs]
    units = time_axes(grid, [hours_s * FOR_NUMBERS for hours_s in longest_s])
    for axes, run, unit_s in zip(grid, runs, units, strict=True):
        _run(axes, run, unit_s / MINUTE_S)
        axes.set_title(f"{run.label}: time to step {steps_of(run.compared)}")
    return made


def _run(axes: Axes, run: ReportRun, unit: float) -> None:
    bars = _bars(run)
    shade = run_colour(run.place, "training")
    elastic = minutes_of(run.compared, ELASTIC)
    for place, (name, minutes) in enumerate(bars):
        is_own = name in (ELASTIC, RECORDED)
        axes.barh(place, minutes / unit, height=0.72, color=shade, alpha=1.0 if is_own else 0.45)
        times = f"  {minutes / elastic:.2f}×" if elastic else ""
        note(axes, f"{spoken(minutes * MINUTE_S)}{times}", (minutes / unit, place))
    bars_of(axes, [name for name, _ in bars])
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")


def _says(run: ReportRun) -> str:
    elastic = minutes_of(run.compared, ELASTIC)
    found = list(beside(run.compared, elastic)) if elastic else []
    text = f"Simulated, elastic takes {' and '.join(found)}." if found else ""
    live = live_minutes(run)
    if live is not None and elastic and not run.is_simulated:
        text += f" The run itself took {spoken(live * MINUTE_S)} to the same step, "
        text += f"{live / elastic:.2f} times what was simulated."
    return text.strip() or "No two placements can be compared."


def _why_not(run: ReportRun) -> str:
    found = [f"{comparison.placement}: {comparison.how}" for comparison in run.compared]
    return "; ".join(found) or "its journal does not make a run to its end"


def _tables(run: ReportRun) -> list[ReportTable]:
    elastic = minutes_of(run.compared, ELASTIC)
    rows = [_row(comparison, elastic) for comparison in run.compared]
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
