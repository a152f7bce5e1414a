"""Panels on demand and supply: the water, the groups that are ready, and how far others are."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from gyre.observability.dashboard.thinning import thinned, window
from gyre.observability.dashboard.view import ViewWindow, columns, named
from gyre.observability.history.run import RunCounts, RunHistory, supply

_at: Callable[[RunCounts], float] = attrgetter("at_s")


def water(story: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Demand, room, and the line under which a cell may leave rollout (SPEC 2.1)."""
    rows = _levels(story, view, attrgetter("waterlevel"), attrgetter("capacity"))
    cell = story.shape.cell_capacity
    return columns(
        rows,
        named("at_s", "waterlevel", "running", "capacity", "evaluations")
        | {"line": lambda one: one.capacity - cell},
    )


def supplies(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Ready groups against what a cell's entering asks for, and how long that has held."""
    shape = story.shape
    values: dict[str, Callable[[RunCounts], Any]] = {
        "at_s": _at,
        "supply": lambda one: supply(one, shape),
        "ready": attrgetter("ready"),
        "needed": lambda one: shape.groups_per_batch - one.assigned,
        "since_s": attrgetter("supply_since_s"),
        "held_s": _held_s,
    }
    inside = [[at_s, cell] for at_s, cell in story.entered if view.from_s <= at_s <= view.to_s]
    return {
        "rows": columns(_levels(story, view, values["supply"], values["ready"]), values),
        "threshold": shape.supply_groups,
        "dwell_s": shape.supply_dwell_s,
        "entered": inside[-view.points :],
    }


def _held_s(level: RunCounts) -> float:
    return 0.0 if level.supply_since_s is None else level.at_s - level.supply_since_s


def groups(story: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Outstanding groups by how far they are."""
    rows = _levels(story, view, attrgetter("running_groups"), attrgetter("ready"))
    states = {one: attrgetter(f"{one}_groups") for one in ("queued", "running", "assessing")}
    return columns(rows, {"at_s": _at} | states | named("ready", "assigned"))


def _levels(
    story: RunHistory, view: ViewWindow, *values: Callable[[RunCounts], float]
) -> list[RunCounts]:
    inside = window(story.levels, _at, since_s=view.from_s, until_s=view.to_s)
    return thinned(inside, _at, values, most=view.points)
