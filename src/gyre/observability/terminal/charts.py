"""Timeline and curves in characters."""

from collections.abc import Sequence

from gyre.observability.history.run import RunHistory
from gyre.observability.terminal.text import ROLES, spoken, squeezed
from gyre.scheduler.cells import CellState
from gyre.simulator.timeline import EIGHTHS, GAP, STEP, TimeAxis, cell_rows, legend
from gyre.types.ids import CORE

ROWS = 6
WIDEST_BAR = 4
"""Columns of one step, where more would fit."""


def curve(values: Sequence[tuple[int, float]], *, width: int) -> list[str]:
    """A picture of (step, value) in their order; nothing of none."""
    if not values:
        return []
    found = [value for _, value in values]
    low, high = _floor(found), max(found)
    marks = [f"{high:.3f}", f"{low:.3f}"]
    margin = max(map(len, marks)) + 2
    num_columns = width - margin
    means = squeezed(found, num_columns)
    wide = max(1, min(WIDEST_BAR, num_columns // len(means)))
    columns = [_column(mean, low, high) for mean in means]
    lines = []
    for row in range(ROWS):
        mark = {0: marks[0], ROWS - 1: marks[1]}.get(row, "")
        drawn = "".join(_spaced(column[ROWS - 1 - row], wide) for column in columns)
        lines.append(f"{mark:>{margin - 2}} │{drawn}".rstrip())
    first, last = f"step {values[0][0]}", f"{values[-1][0]}"
    reach = len(means) * wide - (wide > 1)
    axis = first if len(values) == 1 else f"{first} {last:>{max(0, reach - len(first) - 1)}}"
    return [*lines, f"{'':>{margin}}{axis}"]


def _floor(values: Sequence[float]) -> float:
    """0 where bars from 0 can be told apart, else a little below the lowest."""
    low, high = min(values), max(values)
    if low >= 0 and (low < high / 2 or low == high):
        return 0.0
    return low - (high - low) / 10


def _column(value: float, low: float, high: float) -> str:
    """From below; a value above the lowest can always be seen."""
    part = 0.0 if high <= low else (value - low) / (high - low)
    whole, rest = divmod(max(1, round(part * ROWS * 8)), 8)
    drawn = EIGHTHS[-1] * whole + (EIGHTHS[rest - 1] if rest else "")
    return drawn.ljust(ROWS, GAP)


def _spaced(sign: str, wide: int) -> str:
    """Bars that are wide enough stand apart."""
    return sign if wide == 1 else sign * (wide - 1) + GAP


MOST_ROWS = 24
"""Of cells; where there are more, several share a row."""
_SHARE = 6
"""Columns for a cell's share of time in training."""


def timeline(history: RunHistory, *, width: int) -> list[str]:
    """All of the run so far."""
    end_s = history.now_s
    if end_s <= 0:
        return []
    shape = history.shape
    cells = cell_rows(shape.num_cells, most=MOST_ROWS)
    names = {label: "core" if [*shown] == [CORE] else label for label, shown in cells.items()}
    margin = max(len("waterlevel"), *map(len, cells)) + 2
    axis = TimeAxis(end_s, max(8, width - margin - _SHARE))
    lines, drawn = [], ""
    for label, shown in cells.items():
        spans = [span for cell in shown for span in history.fleet.spans(cell, 0.0, end_s)]
        row = axis.roles((span.start_s, span.end_s, ROLES[span.state][0]) for span in spans)
        drawn += row
        training = (span for span in spans if span.state is CellState.TRAINING)
        share = sum(span.end_s - span.start_s for span in training) / (end_s * len(shown))
        lines.append(f"{names[label]:<{margin}}{row}{share:>{_SHARE}.0%}")
    if alone := len(shape.standalone_capacities):
        serving = ROLES[CellState.SERVING][0]
        lines.append(f"{f'alone {alone}':<{margin}}{serving * axis.num_columns}")
    steps = axis.steps(step.at_s for step in history.steps.rows)
    lines.append(f"{'steps':<{margin}}{steps}".rstrip())
    levels = [level.waterlevel for level in history.levels]
    water = axis.levels([level.at_s for level in history.levels], levels, until_s=end_s)
    lines.append(f"{'waterlevel':<{margin}}{water}".rstrip())
    lines.append(f"{'':<{margin}}0{spoken(end_s):>{axis.num_columns - 1}}")
    rest = (f"{STEP} step", "% in training", f"waterlevel up to {max(levels):,}")
    return lines + legend(drawn, rest, between="   ", margin=margin, width=width)
