"""Values over steps as bars of characters, with an axis on either side."""

from collections.abc import Sequence

from gyre.observability.terminal.text import EIGHTHS, GAP, squeezed

ROWS = 6
WIDEST_BAR = 4
"""Columns of one step, where there is room for more."""


def curve(values: Sequence[tuple[int, float]], *, width: int) -> list[str]:
    """A picture of (step, value) in their order; nothing of none."""
    if not values:
        return []
    found = [value for _, value in values]
    low, high = _floor(found), max(found)
    marks = [f"{high:.3f}", f"{low:.3f}"]
    margin = max(map(len, marks)) + 2
    room = width - margin
    means = squeezed(found, room)
    wide = max(1, min(WIDEST_BAR, room // len(means)))
    columns = [_column(one, low, high) for one in means]
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
    """From below; whatever is there can be seen."""
    part = 0.0 if high <= low else (value - low) / (high - low)
    whole, rest = divmod(max(1, round(part * ROWS * 8)), 8)
    drawn = EIGHTHS[-1] * whole + (EIGHTHS[rest - 1] if rest else "")
    return drawn.ljust(ROWS, GAP)


def _spaced(sign: str, wide: int) -> str:
    """Bars that are wide enough stand apart."""
    return sign if wide == 1 else sign * (wide - 1) + GAP
