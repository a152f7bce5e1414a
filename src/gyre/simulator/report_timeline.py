"""Who did what when, in characters: a line for each cell, with steps and waterlevel beneath."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from math import ceil

from gyre.simulator.durations import HOUR_S
from gyre.simulator.result import Role, RoleInterval, SimulationResult

SIGNS = {
    Role.ROLLOUT: "·",
    Role.ENTERING: ">",
    Role.TRAINING: "█",
    Role.LEAVING: "<",
    Role.WAITING: "w",
    Role.FENCED: "f",
    Role.DEAD: "x",
}
LEVELS = " ▁▂▃▄▅▆▇█"
STEP = "+"
WIDTH = 80
MOST_LINES = 16
"""Lines for cells; where there are more cells, several share a line."""


def timeline(
    record: SimulationResult,
    *,
    standalone: int = 0,
    until_s: float | None = None,
    width: int = WIDTH,
) -> list[str]:
    """A line for each cell, or for a few where there are many; `until_s` gives several records one
    scale."""
    end_s = max(record.end_s, until_s or 0.0)
    labels = _labels(len(record.roles))
    margin = max(len("waterlevel"), *map(len, labels)) + 2
    slices = _slices(end_s, num=width - margin)
    rows = {
        label: _row(record.roles[first:last], end_s=end_s, num=width - margin)
        for label, (first, last) in labels.items()
    }
    if standalone:
        served = "".join(
            SIGNS[Role.ROLLOUT] if start < record.end_s else " " for start, _ in slices
        )
        rows[f"alone {standalone}"] = served
    drawn = "".join(rows.values())
    rows["steps"] = "".join(_step_sign(record, *one) for one in slices)
    peak = max((one.waterlevel for one in record.levels), default=0)
    rows["waterlevel"] = _water(record, peak, slices)
    lines = [f"{label:<{margin}}{row}".rstrip() for label, row in rows.items()]
    legend = _legend(drawn, peak, margin=margin, width=width)
    return [*lines, _axis(end_s, margin=margin, width=width), *legend]


def _labels(num_cells: int) -> dict[str, tuple[int, int]]:
    """Cells from and below, by what their line is called."""
    per_line = -(-num_cells // MOST_LINES)
    spans = [(at, min(at + per_line, num_cells)) for at in range(0, num_cells, per_line)]
    return {
        f"cell {first}" if last == first + 1 else f"cells {first}-{last - 1}": (first, last)
        for first, last in spans
    }


def _slices(end_s: float, *, num: int) -> list[tuple[float, float]]:
    return [(end_s * at / num, end_s * (at + 1) / num) for at in range(num)]


def _row(cells: Sequence[Sequence[RoleInterval]], *, end_s: float, num: int) -> str:
    """For each slice the role that most of its cells' time went to."""
    if not end_s:
        return ""
    spent: list[dict[Role, float]] = [defaultdict(float) for _ in range(num)]
    slice_s = end_s / num
    for one in chain(*cells):
        for at in range(int(one.start_s / slice_s), min(num, ceil(one.end_s / slice_s))):
            inside_s = min(one.end_s, (at + 1) * slice_s) - max(one.start_s, at * slice_s)
            spent[at][one.role] += max(0.0, inside_s)
    # The first of the roles in their order, where two share a slice evenly.
    return "".join(
        SIGNS[max(Role, key=lambda role: roles[role])] if roles else " " for roles in spent
    )


def _step_sign(record: SimulationResult, start_s: float, end_s: float) -> str:
    taken = sum(start_s < one.at_s <= end_s for one in record.steps)
    return " " if not taken else STEP if taken == 1 else str(min(taken, 9))


def _water(record: SimulationResult, peak: int, slices: Sequence[tuple[float, float]]) -> str:
    """The waterlevel in the middle of each slice; whatever is above 0 can be seen."""
    times = [one.at_s for one in record.levels]
    signs = []
    for start_s, end_s in slices:
        middle_s = (start_s + end_s) / 2
        at = bisect_right(times, middle_s) - 1
        is_known = at >= 0 and middle_s < record.end_s
        found = record.levels[at].waterlevel if is_known else 0
        signs.append(LEVELS[-(-found * (len(LEVELS) - 1) // max(1, peak))])
    return "".join(signs)


def _axis(end_s: float, *, margin: int, width: int) -> str:
    end = f"{end_s / HOUR_S:.2f} h"
    return f"{'':<{margin}}0{end:>{width - margin - 1}}"


def _legend(drawn: str, peak: int, *, margin: int, width: int) -> list[str]:
    """Signs that can be seen: a switch is often shorter than a slice."""
    signs = [f"{sign} {role.value}" for role, sign in SIGNS.items() if sign in drawn]
    lines: list[str] = []
    for one in [*signs, f"{STEP} a step", f"waterlevel up to {peak:,}"]:
        if lines and len(lines[-1]) + 2 + len(one) <= width - margin:
            lines[-1] += f"  {one}"
        else:
            lines.append(one)
    return [f"{'':<{margin}}{line}" for line in lines]
