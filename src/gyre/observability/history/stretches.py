"""Stretches of time in the order in which they ended, and how much of them lies in a window."""

from bisect import bisect_right


class Intervals:
    """Times from a begin to an end; ends never go back."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._longest_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, begin_s: float, end_s: float) -> None:
        self._begins.append(begin_s)
        self._ends.append(end_s)
        self._longest_s = max(self._longest_s, end_s - begin_s)

    def inside(self, since_s: float, until_s: float) -> float:
        """Seconds within the window; stretches that lie over each other count each."""
        # Whatever ends later than this began behind the window.
        first = bisect_right(self._ends, since_s)
        last = bisect_right(self._ends, until_s + self._longest_s)
        return sum(
            max(0.0, min(self._ends[one], until_s) - max(self._begins[one], since_s))
            for one in range(first, last)
        )
