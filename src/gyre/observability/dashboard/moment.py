"""One moment of a story as plain values: where the run was, and what kept the next cell at home."""

from collections.abc import Sequence
from typing import Any

from gyre.observability.dashboard.panels_use import latest
from gyre.observability.history.run import RunCounts, RunHistory, supply
from gyre.scheduler import rules
from gyre.scheduler.burst import Phase
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.dispatch import Boundary
from gyre.scheduler.placements import Elastic
from gyre.types.ids import CORE

_JOINED = (CellState.ENTERING, CellState.TRAINING)


def plain_shape(shape: SchedulerConfig) -> dict[str, Any]:
    """What a page needs to know of a run before anything happens, by the paper's symbols."""
    dispatch, placement = shape.dispatch, shape.placement
    is_boundary = isinstance(dispatch, Boundary)
    serving = shape.num_cells if placement.cells_serve else 0
    return {
        "B": shape.groups_per_batch,
        "N": shape.executions_per_group,
        "group_size": shape.group_size,
        "K": shape.num_cells,
        "C_e": shape.cell_capacity,
        "C_s": shape.standalone_capacity,
        "standalone": list(shape.standalone_capacities),
        "mu": shape.steps_per_burst,
        "phi": dispatch.extra_dispatch if isinstance(dispatch, Boundary) else None,
        "depth": None if isinstance(dispatch, Boundary) else dispatch.depth,
        "dispatch": "boundary" if is_boundary else "continuous",
        "steps": shape.steps,
        "placement": type(placement).__name__.lower(),
        "is_streaming": placement.streaming,
        "cells_serve": placement.cells_serve,
        "supply_groups": shape.supply_groups,
        "supply_dwell_s": shape.supply_dwell_s,
        "rescue_s": shape.rescue_s,
        "full_capacity": shape.standalone_capacity + serving * shape.cell_capacity,
    }


def moment(story: RunHistory, at_s: float) -> dict[str, Any]:
    """The run as it was then."""
    shape, level = story.shape, story.level_at(at_s)
    states = [story.fleet.change_at(cell, at_s).state for cell in range(shape.num_cells)]
    is_over = story.is_over and at_s >= story.now_s
    why = "over" if is_over else hindrance(shape, level, states, at_s)
    outcomes = story.work.outcomes_at(at_s)
    return {
        "at_s": at_s,
        "version": level.version,
        "published": level.published,
        "phase": level.phase.value,
        "is_batch_open": level.is_batch_open,
        "assigned": level.assigned,
        "needed": shape.groups_per_batch - level.assigned,
        "ready": level.ready,
        "waterlevel": level.waterlevel,
        "running": level.running,
        "queued": level.queued,
        "evaluations": level.evaluations,
        "capacity": level.capacity,
        "line": level.capacity - shape.cell_capacity,
        "supply": supply(level, shape),
        "supply_since_s": level.supply_since_s,
        "entering": {"may": why is None, "why": why},
        "left_s": 0.0 if is_over else _left_s(story, level, at_s),
        "cells": [_engine(story, cell, at_s) for cell in range(shape.num_cells)],
        "engines": [
            _engine(story, engine, at_s)
            for engine in range(shape.num_cells, len(story.fleet.capacities))
        ],
        "groups": {
            "queued": level.queued_groups,
            "running": level.running_groups,
            "assessing": level.assessing_groups,
            "ready": level.ready,
            "assigned": level.assigned,
            "trained": level.trained,
            "void": level.void,
        },
        "executions": {
            "dispatched": level.dispatched,
            "launched": level.launched,
            "terminated": level.terminated,
            "closed": sum(outcomes.values()),
        },
        "outcomes": outcomes,
        "endings": story.work.endings_at(at_s),
        "use": latest(story, at_s),
    }


def _engine(story: RunHistory, engine: int, at_s: float) -> dict[str, Any]:
    change = story.fleet.change_at(engine, at_s)
    is_cell = engine < story.shape.num_cells
    named: dict[str, Any] = {"engine": engine}
    if is_cell:
        named = {"cell": engine, "kind": "core" if engine == CORE else "satellite"}
    return named | {
        "state": change.state.value,
        "since_s": change.at_s,
        "load": story.fleet.load_at(engine, at_s),
        "capacity": story.fleet.capacities[engine],
    }


def hindrance(
    shape: SchedulerConfig, level: RunCounts, states: Sequence[CellState], at_s: float
) -> str | None:
    """What keeps the next cell from entering training, the first in the order of the rules (SPEC
    2.1); None where nothing does, and it is sent with the next event."""
    if not shape.placement.cells_serve:
        return "fixed split"
    if level.phase is not Phase.TRAINING:
        return "burst end"
    if level.switching:
        return "switching"
    num_next = _num_next(shape, states)
    if not num_next:
        return "nobody home"
    if (missing := _unsupplied(shape, level, states[CORE], at_s)) is not None:
        return missing
    may_enter = shape.placement.pauses or rules.may_enter_training(
        waterlevel=level.waterlevel,
        capacity=level.capacity,
        leaving=num_next * shape.cell_capacity,
    )
    return None if may_enter else "waterlevel"


def _num_next(shape: SchedulerConfig, states: Sequence[CellState]) -> int:
    """Cells that would enter together."""
    home = [cell for cell, state in enumerate(states) if state is CellState.SERVING]
    if not isinstance(shape.placement, Elastic):
        return len(home)
    if states[CORE] is not CellState.TRAINING:
        return int(states[CORE] is CellState.SERVING)
    last = max(cell for cell, state in enumerate(states) if state in _JOINED)
    return int(any(cell > last for cell in home))


def _unsupplied(
    shape: SchedulerConfig, level: RunCounts, core: CellState, at_s: float
) -> str | None:
    if core is not CellState.TRAINING:
        if level.is_batch_open:
            return None
        if not shape.placement.streaming:
            done = level.version % shape.steps_per_burst * shape.groups_per_batch + level.assigned
            return None if level.ready >= shape.burst_groups - done else "supply"
    if supply(level, shape) < shape.supply_groups:
        return "supply"
    since_s, dwell_s = level.supply_since_s, shape.supply_dwell_s
    return None if rules.has_dwelt(since=since_s, dwell_s=dwell_s, now=at_s) else "dwell"


def _left_s(story: RunHistory, level: RunCounts, at_s: float) -> float | None:
    """Until the last step, if all that are left take the mean time; None where nobody knows."""
    steps = story.steps.until(at_s)
    if story.shape.steps is None or not steps:
        return None
    mean_s = steps[-1].at_s / len(steps)
    # A step that takes longer than the mean is about to end, as far as anybody knows.
    since_s = min(at_s - steps[-1].at_s, mean_s)
    return max(0.0, (story.shape.steps - level.version) * mean_s - since_s)
