"""Many rows in few: those that a picture of this width cannot do without."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

Row = TypeVar("Row")


def window(
    rows: Sequence[Row], at: Callable[[Row], float], *, since_s: float, until_s: float
) -> Sequence[Row]:
    """Rows of a window, and the one before it, whose values hold when it begins."""
    first = max(0, bisect_right(rows, since_s, key=at) - 1)
    return rows[first : bisect_right(rows, until_s, key=at)]


def thinned(
    rows: Sequence[Row],
    at: Callable[[Row], float],
    values: Sequence[Callable[[Row], float]],
    *,
    most: int,
) -> list[Row]:
    """At most about so many, each one of them as it was.

    Of every slice of time its first row, its last, and for each value the highest and the lowest,
    so that no peak is lost.
    """
    if len(rows) <= most:
        return list(rows)
    slices = max(1, most // (2 + 2 * len(values)))
    begin_s, end_s = at(rows[0]), at(rows[-1])
    kept: list[Row] = []
    first = 0
    for place in range(1, slices + 1):
        last = len(rows)
        if place < slices:
            last = bisect_left(rows, begin_s + (end_s - begin_s) * place / slices, lo=first, key=at)
        if last > first:
            found = {first, last - 1}
            inside = range(first, last)
            for value in values:
                column = [value(rows[one]) for one in inside]
                found |= {first + column.index(min(column)), first + column.index(max(column))}
            kept += (rows[one] for one in sorted(found))
        first = last
    return kept
