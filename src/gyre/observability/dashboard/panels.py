"""Panels of a run's page as plain values: what its history says up to a moment, thinned to a width.

Rule 1: nothing that happened after the moment is in any of them.
Rule 2: a row is one of the run's own, never a mean of several.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from gyre.observability.dashboard.panels_cells import idle, roles, transitions
from gyre.observability.dashboard.panels_steps import (
    checkpoints,
    evaluation,
    publications,
    staleness,
    steps,
)
from gyre.observability.dashboard.series import (
    ViewWindow,
    columns,
    histogram,
    named,
    round_up_time,
    thinned,
    window,
)
from gyre.observability.history.cells import at_of
from gyre.observability.history.run import RunCounts, RunHistory, supply
from gyre.observability.resource_use import OTHERS, ROLES, RoleUsage, UsageSample, added
from gyre.types.outcomes import Ending


def water(history: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Demand, capacity, and the line under which a cell may leave rollout (SPEC 2.1)."""
    rows = _levels(history, view, attrgetter("waterlevel"), attrgetter("capacity"))
    cell = history.shape.cell_capacity
    return columns(
        rows,
        named("at_s", "waterlevel", "running", "capacity", "evaluations")
        | {"line": lambda one: one.capacity - cell},
    )


def supplies(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Ready groups against what a cell's entering asks for, and how long that has held."""
    shape = history.shape
    values: dict[str, Callable[[RunCounts], Any]] = {
        "at_s": at_of,
        "supply": lambda one: supply(one, shape),
        "ready": attrgetter("ready"),
        "needed": lambda one: shape.groups_per_batch - one.assigned,
        "since_s": attrgetter("supply_since_s"),
        "held_s": _held_s,
    }
    inside = [[at_s, cell] for at_s, cell in history.entered if view.from_s <= at_s <= view.to_s]
    return {
        "rows": columns(_levels(history, view, values["supply"], values["ready"]), values),
        "threshold": shape.supply_groups,
        "dwell_s": shape.supply_dwell_s,
        "entered": inside[-view.points :],
    }


def _held_s(level: RunCounts) -> float:
    return 0.0 if level.supply_since_s is None else level.at_s - level.supply_since_s


def groups(history: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Outstanding groups by how far they are."""
    rows = _levels(history, view, attrgetter("running_groups"), attrgetter("ready"))
    states = {name: attrgetter(f"{name}_groups") for name in ("queued", "running", "assessing")}
    return columns(rows, {"at_s": at_of} | states | named("ready", "assigned"))


def _levels(
    history: RunHistory, view: ViewWindow, *values: Callable[[RunCounts], float]
) -> list[RunCounts]:
    inside = window(history.levels, at_of, since_s=view.from_s, until_s=view.to_s)
    return thinned(inside, at_of, values, most=view.points)


def use(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """What was measured in the window: over time, and in sum for each cell and role."""
    first = bisect_right(history.uses, view.from_s, key=at_of)
    rows = history.uses[first : bisect_right(history.uses, view.to_s, key=at_of)]
    num_cells = history.shape.num_cells
    measured = {cell for row in rows for cell in row.cells}
    summed = {
        cell: added(row.cells[cell] for row in rows if cell in row.cells)
        for cell in sorted(measured)
    }
    return {
        "roles": list(ROLES),
        "others": list(OTHERS),
        "is_measured": bool(rows),
        "has_devices": any(row.busy is not None for row in rows),
        "over_time": _over_time(rows, most=view.points),
        "cells": [
            {"cell": cell, "roles": _plain(summed.get(cell, {}))} for cell in range(num_cells)
        ],
        "engines": [
            {"engine": engine, "roles": _plain(summed.get(engine, {}))}
            for engine in range(num_cells, len(history.fleet.capacities))
        ],
        "total": _plain(added(summed.values())),
        "beside": {who: _beside(rows, who) for who in OTHERS},
    }


def latest(history: RunHistory, at_s: float) -> dict[str, Any] | None:
    """The last measurement before a moment; None where there was none."""
    place = bisect_right(history.uses, at_s, key=at_of)
    if not place:
        return None
    last = history.uses[place - 1]
    return {
        "at_s": last.at_s,
        "seconds": last.seconds,
        "cores": {who: last.cores(who) for who in (*ROLES, *OTHERS)},
        "busy": last.busy,
    }


def _over_time(rows: Sequence[UsageSample], *, most: int) -> dict[str, Any]:
    kept = thinned(rows, at_of, [attrgetter("all_cores")], most=most)
    return {
        "from_s": [sample.from_s for sample in kept],
        "at_s": [sample.at_s for sample in kept],
        "cores": {who: [sample.cores(who) for sample in kept] for who in (*ROLES, *OTHERS)},
        "busy": {role: [sample.role(role).busy for sample in kept] for role in ROLES},
    }


def _plain(parts: Mapping[str, RoleUsage]) -> dict[str, dict[str, float | None]]:
    names = ("seconds", "cpu_s", "cores", "busy")
    return {role: {name: getattr(part, name) for name in names} for role, part in parts.items()}


def _beside(rows: Sequence[UsageSample], who: str) -> dict[str, float | None]:
    mine = [row for row in rows if who in row.others]
    seconds = sum(sample.seconds for sample in mine)
    cpu_s = sum(sample.others[who] for sample in mine)
    return {
        "seconds": seconds,
        "cpu_s": cpu_s if mine else None,
        "cores": cpu_s / seconds if seconds else None,
    }


MOST_FAULTS = 200
ENDINGS = tuple(ending.value for ending in Ending)


def durations(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Of executions from launch to termination, and of each query's longest one."""
    work = history.work
    ran = work.until(work.executions, view.to_s, since_s=view.from_s)
    longest = work.until(work.longest, view.to_s, since_s=view.from_s)
    late = Ending.TIMED_OUT
    return {
        "executions": histogram(
            ((duration.seconds, duration.ending.value) for duration in ran),
            kinds=ENDINGS,
            rounded=round_up_time,
        ),
        "queries": histogram(
            (
                (duration.seconds, late.value if duration.ending is late else "all")
                for duration in longest
            ),
            kinds=("all", late.value),
            rounded=round_up_time,
        ),
    }


def faults(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """What went wrong up to the moment."""
    found = list(history.faults.until(view.at_s))
    shown = [fault for fault in found if fault.at_s >= view.from_s][-MOST_FAULTS:]
    return {
        "counts": dict(Counter(fault.kind for fault in found)),
        "rows": [
            {
                "at_s": fault.at_s,
                "kind": fault.kind,
                "text": fault.text,
                "cell": fault.cell,
                "engine": fault.engine,
                "repaired_s": fault.mended_at_s - fault.at_s
                if fault.mended_at_s is not None and fault.mended_at_s <= view.at_s
                else None,
            }
            for fault in shown
        ],
    }


PANELS: dict[str, Callable[[RunHistory, ViewWindow], Any]] = {
    "roles": roles,
    "water": water,
    "supply": supplies,
    "groups": groups,
    "steps": steps,
    "evaluation": evaluation,
    "staleness": staleness,
    "durations": durations,
    "idle": idle,
    "publications": publications,
    "checkpoints": checkpoints,
    "transitions": transitions,
    "use": use,
    "faults": faults,
}
"""By name; the sizes of trees come from call logs and are no part of a run."""


def panels(history: RunHistory, view: ViewWindow, names: Iterable[str]) -> dict[str, Any]:
    """Those asked for, which all exist."""
    return {name: PANELS[name](history, view) for name in names}
