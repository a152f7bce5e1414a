"""Panels of a run's page as plain values: what its story says up to a moment, thinned to a width.

Rule 1: nothing that happened after the moment is in any of them.
Rule 2: a row is one of the run's own, never a mean of several.
"""

from collections.abc import Callable, Iterable
from typing import Any

from gyre.observability.dashboard.panels_cells import idle, roles, transitions
from gyre.observability.dashboard.panels_demand import groups, supplies, water
from gyre.observability.dashboard.panels_steps import (
    checkpoints,
    evaluation,
    publications,
    staleness,
    steps,
)
from gyre.observability.dashboard.panels_use import use
from gyre.observability.dashboard.panels_work import durations, faults
from gyre.observability.dashboard.view import ViewWindow
from gyre.observability.history.run import RunHistory

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
"""By name; the sizes of trees come from call logs and are no part of a story."""


def panels(story: RunHistory, view: ViewWindow, names: Iterable[str]) -> dict[str, Any]:
    """Those asked for, which all exist."""
    return {name: PANELS[name](story, view) for name in names}
