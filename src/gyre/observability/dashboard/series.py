"""Windows, downsampling and histograms (pure)."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from operator import attrgetter
from statistics import fmean
from typing import Any, TypeVar

BINS = 40
"""Of a histogram, at most."""
ALMOST_ALL = 0.99
"""What is longer than this part of all shares the last bin."""
_CLOCK = (*(1, 2, 5, 10, 15, 30), *(60, 120, 300, 600, 900, 1800), *(3600, 7200, 14400, 21600))
"""Seconds, minutes and hours."""


def round_up(width: float) -> float:
    """The next of 1, 2, 5 and their tens; never 0."""
    if width <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(width))
    return next(
        (factor * unit for factor in (1, 2, 5) if width <= factor * unit * (1 + 1e-9)), 10 * unit
    )


def round_up_count(width: float) -> float:
    """The next that whole numbers have: no bin of them is narrower than one."""
    return max(1.0, round_up(width))


def round_up_time(seconds: float) -> float:
    """The next that clocks have: seconds, minutes or hours that part what is above them."""
    longest = _CLOCK[-1]
    if seconds <= 1:
        return round_up(seconds)
    if seconds > longest:
        return longest * round_up(seconds / longest)
    return next(step_s for step_s in _CLOCK if seconds <= step_s * (1 + 1e-9))


def histogram(
    values: Iterable[tuple[float, str]],
    *,
    kinds: Sequence[str],
    rounded: Callable[[float], float] = round_up,
) -> dict[str, Any]:
    """Counts by kind in bins of one width, a round one, beside what is said of all values."""
    found = sorted(values)
    if not found:
        nothing = dict.fromkeys(("mean", "median", "p95", "max"))
        return {"edges": [], "counts": {}, "is_open": False, "num": 0} | nothing
    sizes = [size for size, _ in found]
    width = rounded(quantile(sizes, ALMOST_ALL) / (BINS - 1))
    num_bins = min(BINS, floor(sizes[-1] / width) + 1)
    # So that tenths stay tenths.
    edges = [round(width * index, 9) for index in range(num_bins + 1)]
    counts = {kind: [0] * num_bins for kind in kinds}
    for size, kind in found:
        counts[kind][min(num_bins - 1, bisect_right(edges, size) - 1)] += 1
    return {
        "edges": edges,
        "counts": {kind: bins for kind, bins in counts.items() if any(bins)},
        "is_open": sizes[-1] >= edges[-1],
        "num": len(sizes),
        "mean": fmean(sizes),
        "median": quantile(sizes, 0.5),
        "p95": quantile(sizes, 0.95),
        "max": sizes[-1],
    }


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of all is not above; `values` ascend."""
    return values[min(len(values) - 1, floor(part * len(values)))]


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
                column = [value(rows[index]) for index in inside]
                found |= {first + column.index(min(column)), first + column.index(max(column))}
            kept += (rows[index] for index in sorted(found))
        first = last
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewWindow:
    """What a page looks at: a moment, and the window that its panels show."""

    at_s: float
    from_s: float
    to_s: float
    """Not after the moment."""
    points: int = 600
    """Rows of a picture, about."""


def columns(
    rows: Sequence[Row], values: Mapping[str, Callable[[Row], Any]]
) -> dict[str, list[Any]]:
    """Rows as one list for each name."""
    return {name: [value(row) for row in rows] for name, value in values.items()}


def named(*names: str) -> dict[str, Callable[[Any], Any]]:
    """Columns that are called as the fields of their rows."""
    return {name: attrgetter(name) for name in names}
