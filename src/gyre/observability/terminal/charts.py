"""Timeline and curves in characters."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from math import ceil

from gyre.observability.history.cells import CellSpan
from gyre.observability.terminal.board import RunBoard
from gyre.observability.terminal.text import EIGHTHS, GAP, ROLES, STEP, spoken, squeezed
from gyre.scheduler.cells import CellState
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


def timeline(board: RunBoard, *, width: int) -> list[str]:
    """All of the run so far."""
    end_s = board.now
    if end_s <= 0:
        return []
    named = _named(board.shape.num_cells)
    margin = max(len("waterlevel"), *map(len, named)) + 2
    num_columns = max(8, width - margin - _SHARE)
    lines, drawn = [], ""
    for name, cells in named.items():
        spans = [board.spans(cell) for cell in cells]
        row = _row(spans, end_s=end_s, num_columns=num_columns)
        drawn += row
        share = _training_s(spans) / (end_s * len(cells))
        lines.append(f"{name:<{margin}}{row}{share:>{_SHARE}.0%}")
    if alone := len(board.shape.standalone_capacities):
        serving = ROLES[CellState.SERVING][0]
        lines.append(f"{f'alone {alone}':<{margin}}{serving * num_columns}")
    lines.append(f"{'steps':<{margin}}{_steps(board, num_columns)}".rstrip())
    peak = max((level.waterlevel for level in board.levels), default=0)
    lines.append(f"{'waterlevel':<{margin}}{_water(board, peak, num_columns)}".rstrip())
    lines.append(f"{'':<{margin}}0{spoken(end_s):>{num_columns - 1}}")
    return [*lines, *_legend(drawn, peak, margin=margin, width=width)]


def _named(num_cells: int) -> dict[str, range]:
    """Cells by what their row is called."""
    per_row = -(-num_cells // MOST_ROWS)
    found = [range(at, min(at + per_row, num_cells)) for at in range(0, num_cells, per_row)]
    return {_name(one): one for one in found}


def _name(cells: range) -> str:
    if len(cells) > 1:
        return f"cells {cells[0]}-{cells[-1]}"
    return "core" if cells[0] == CORE else f"cell {cells[0]}"


def _row(cells: Sequence[Sequence[CellSpan]], *, end_s: float, num_columns: int) -> str:
    """For each slice the state that most of its cells' time went to."""
    spent: list[dict[CellState, float]] = [defaultdict(float) for _ in range(num_columns)]
    slice_s = end_s / num_columns
    for span in chain(*cells):
        for at in range(int(span.start_s / slice_s), min(num_columns, ceil(span.end_s / slice_s))):
            inside_s = min(span.end_s, (at + 1) * slice_s) - max(span.start_s, at * slice_s)
            spent[at][span.state] += max(0.0, inside_s)
    # The first of the states in their order, where two share a slice evenly.
    return "".join(
        ROLES[max(ROLES, key=lambda state: states[state])][0] if states else GAP for states in spent
    )


def _training_s(cells: Sequence[Sequence[CellSpan]]) -> float:
    spans = (span for span in chain(*cells) if span.state is CellState.TRAINING)
    return sum(span.end_s - span.start_s for span in spans)


def _steps(board: RunBoard, num_columns: int) -> str:
    taken = [0] * num_columns
    for step in board.steps:
        taken[min(num_columns - 1, max(0, ceil(step.at_s / board.now * num_columns) - 1))] += 1
    return "".join(GAP if many == 0 else STEP if many == 1 else str(min(many, 9)) for many in taken)


def _water(board: RunBoard, peak: int, num_columns: int) -> str:
    """The level in the middle of each slice; a level above 0 can always be seen."""
    signs = GAP + EIGHTHS
    times = [one.at_s for one in board.levels]
    drawn = ""
    for at in range(num_columns):
        place = bisect_right(times, board.now * (at + 0.5) / num_columns) - 1
        level = board.levels[place].waterlevel if place >= 0 else 0
        drawn += signs[-(-level * (len(signs) - 1) // max(1, peak))]
    return drawn


def _legend(drawn: str, peak: int, *, margin: int, width: int) -> list[str]:
    """Signs that can be seen: a switch is often shorter than a slice."""
    signs = [f"{sign} {word}" for sign, word, _ in ROLES.values() if sign in drawn]
    lines: list[str] = []
    for one in [*signs, f"{STEP} step", "% in training", f"waterlevel up to {peak:,}"]:
        if lines and len(lines[-1]) + 3 + len(one) <= width - margin:
            lines[-1] += f"   {one}"
        else:
            lines.append(one)
    return [f"{'':<{margin}}{line}" for line in lines]
