"""Durations and sizes in bins, by how their executions ended."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import floor, log10
from statistics import fmean
from typing import Any

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
    return next((one * unit for one in (1, 2, 5) if width <= one * unit * (1 + 1e-9)), 10 * unit)


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
    return next(one for one in _CLOCK if seconds <= one * (1 + 1e-9))


def histogram(
    values: Iterable[tuple[float, str]],
    *,
    kinds: Sequence[str],
    rounded: Callable[[float], float] = round_up,
) -> dict[str, Any]:
    """Counts by kind in bins of one width, a round one, beside what is said of all values."""
    found = sorted(values)
    if not found:
        return {
            "edges": [],
            "counts": {},
            "is_open": False,
            "num": 0,
            "mean": None,
            "median": None,
            "p95": None,
            "max": None,
        }
    sizes = [size for size, _ in found]
    width = rounded(quantile(sizes, ALMOST_ALL) / (BINS - 1))
    num_bins = min(BINS, floor(sizes[-1] / width) + 1)
    # So that tenths stay tenths.
    edges = [round(width * one, 9) for one in range(num_bins + 1)]
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
