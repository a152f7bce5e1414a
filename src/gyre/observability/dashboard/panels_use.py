"""The panel on use: processors and accelerators, by what cells did and who else was there."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from gyre.observability.dashboard.thinning import thinned
from gyre.observability.dashboard.view import ViewWindow
from gyre.observability.history.run import RunHistory
from gyre.observability.resource_use import OTHERS, ROLES, RoleUsage, UsageSample, added

_at = attrgetter("at_s")


def use(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """What was measured in the window: over time, and in sum for each cell and role."""
    first = bisect_right(story.uses, view.from_s, key=_at)
    rows = story.uses[first : bisect_right(story.uses, view.to_s, key=_at)]
    num_cells = story.shape.num_cells
    summed = _summed(rows)
    return {
        "roles": list(ROLES),
        "others": list(OTHERS),
        "is_measured": bool(rows),
        "has_devices": any(one.busy is not None for one in rows),
        "over_time": _over_time(rows, most=view.points),
        "cells": [
            {"cell": cell, "roles": _plain(summed.get(cell, {}))} for cell in range(num_cells)
        ],
        "engines": [
            {"engine": engine, "roles": _plain(summed.get(engine, {}))}
            for engine in range(num_cells, len(story.fleet.capacities))
        ],
        "total": _plain(added(summed.values())),
        "beside": {who: _beside(rows, who) for who in OTHERS},
    }


def latest(story: RunHistory, at_s: float) -> dict[str, Any] | None:
    """The last measurement before a moment; None where there was none."""
    place = bisect_right(story.uses, at_s, key=_at)
    if not place:
        return None
    last = story.uses[place - 1]
    return {
        "at_s": last.at_s,
        "seconds": last.seconds,
        "cores": {who: last.cores(who) for who in (*ROLES, *OTHERS)},
        "busy": last.busy,
    }


def _over_time(rows: Sequence[UsageSample], *, most: int) -> dict[str, Any]:
    kept = thinned(rows, _at, [attrgetter("all_cores")], most=most)
    return {
        "from_s": [one.from_s for one in kept],
        "at_s": [one.at_s for one in kept],
        "cores": {who: [one.cores(who) for one in kept] for who in (*ROLES, *OTHERS)},
        "busy": {role: [one.role(role).busy for one in kept] for role in ROLES},
    }


def _summed(rows: Sequence[UsageSample]) -> dict[int, dict[str, RoleUsage]]:
    cells = sorted({cell for row in rows for cell in row.cells})
    return {cell: added(row.cells[cell] for row in rows if cell in row.cells) for cell in cells}


def _plain(parts: Mapping[str, RoleUsage]) -> dict[str, dict[str, float | None]]:
    return {
        role: {
            "seconds": part.seconds,
            "cpu_s": part.cpu_s,
            "cores": part.cores,
            "busy": part.busy,
        }
        for role, part in parts.items()
    }


def _beside(rows: Sequence[UsageSample], who: str) -> dict[str, float | None]:
    mine = [one for one in rows if who in one.others]
    seconds = sum(one.seconds for one in mine)
    cpu_s = sum(one.others[who] for one in mine)
    return {
        "seconds": seconds,
        "cpu_s": cpu_s if mine else None,
        "cores": cpu_s / seconds if seconds else None,
    }
