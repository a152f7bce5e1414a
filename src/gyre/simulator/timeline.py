"""A run in rows of characters: cells, steps and demand; its placement and pace in words."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Boundary, Placement

SIGNS: Mapping[str, str] = {
    "rollout": "·",
    "entering": ">",
    "training": "█",
    "leaving": "<",
    "waiting": "w",
    "fenced": "f",
    "dead": "x",
}
"""By what a cell does."""
EIGHTHS = "▁▂▃▄▅▆▇█"
STEP = "+"
GAP = " "


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A time from 0, cut into columns."""

    end_s: float
    num_columns: int

    def roles(self, spans: Iterable[tuple[float, float, str]]) -> str:
        """For each column the sign that most of the time went to, of (start, end, sign)."""
        if not self.end_s:
            return ""
        spent: list[dict[str, float]] = [defaultdict(float) for _ in range(self.num_columns)]
        column_s = self.end_s / self.num_columns
        for start_s, end_s, sign in spans:
            last = min(self.num_columns, ceil(end_s / column_s))
            for at in range(int(start_s / column_s), last):
                inside_s = min(end_s, (at + 1) * column_s) - max(start_s, at * column_s)
                spent[at][sign] += max(0.0, inside_s)
        # The first of the signs in their order, where two share a column evenly.
        return "".join(
            max(SIGNS.values(), key=lambda sign: signs[sign]) if signs else GAP for signs in spent
        )

    def steps(self, times: Iterable[float]) -> str:
        """A sign where a step was taken, and how many where there are several."""
        taken = [0] * self.num_columns
        for at_s in times:
            column = ceil(at_s / self.end_s * self.num_columns) - 1
            taken[min(self.num_columns - 1, max(0, column))] += 1
        return "".join(GAP if not n else STEP if n == 1 else str(min(n, 9)) for n in taken)

    def levels(self, times: Sequence[float], levels: Sequence[int], *, until_s: float) -> str:
        """The level in the middle of each column; one above 0 can always be seen."""
        signs, peak, drawn = GAP + EIGHTHS, max(levels, default=0), ""
        for at in range(self.num_columns):
            middle_s = self.end_s * (at + 0.5) / self.num_columns
            place = bisect_right(times, middle_s) - 1
            level = levels[place] if place >= 0 and middle_s < until_s else 0
            drawn += signs[-(-level * (len(signs) - 1) // max(1, peak))]
        return drawn


def cell_rows(num_cells: int, *, most: int) -> dict[str, range]:
    """Cells by what their row is called; where there are many, several share a row."""
    per_row = -(-num_cells // most)
    rows = (range(at, min(at + per_row, num_cells)) for at in range(0, num_cells, per_row))
    return {f"cell {row[0]}" if len(row) == 1 else f"cells {row[0]}-{row[-1]}": row for row in rows}


def legend(drawn: str, rest: Iterable[str], *, between: str, margin: int, width: int) -> list[str]:
    """Signs that can be seen, because a switch is often shorter than a column, and the rest."""
    signs = [f"{sign} {word}" for word, sign in SIGNS.items() if sign in drawn]
    lines: list[str] = []
    for entry in (*signs, *rest):
        if lines and len(lines[-1]) + len(between) + len(entry) <= width - margin:
            lines[-1] += f"{between}{entry}"
        else:
            lines.append(entry)
    return [f"{'':<{margin}}{line}" for line in lines]


def placement_name(placement: Placement) -> str:
    return type(placement).__name__.lower()


def pace(shape: SchedulerConfig) -> str:
    """What is dispatched, by the paper's symbol."""
    match shape.dispatch:
        case Boundary(extra_dispatch=extra):
            return f"phi {extra:g}"
        case other:
            return f"depth {other.depth}"
