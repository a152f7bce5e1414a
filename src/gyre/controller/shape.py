"""What the scheduler is built with, as plain values, and the paths that its mistakes belong to."""

import re
from typing import Any

from gyre.config.run_sections import CellsConfig, HeldOutEvalConfig, ScheduleConfig

_SAME = (
    "groups_per_batch",
    "executions_per_group",
    "steps_per_burst",
    "steps",
    "surplus",
    "supply_fraction",
    "supply_dwell_s",
    "rescue_s",
    "min_valid",
    "max_void",
    "evaluation_holds_slot",
    "endless_dispatch",
    "overcommit",
)
_PATHS = {
    "num_cells": "cells.count",
    "cell_capacity": "cells.capacity",
    "standalone_capacities": "cells.standalone",
    "evaluation_slots": "evaluation.slots",
    "dispatch": "schedule.depth",
    "dispatch.depth": "schedule.depth",
    "dispatch.extra_dispatch": "schedule.extra_dispatch",
    "placement.streaming": "schedule.streaming",
}
_FIELD = re.compile(r"([a-z_.]+)(.*)", re.DOTALL)


def shape_fields(
    schedule: ScheduleConfig, cells: CellsConfig, evaluation: HeldOutEvalConfig
) -> dict[str, Any]:
    """All but dispatch, placement and launch order, whose names stand for the scheduler's parts."""
    return {
        **{name: getattr(schedule, name) for name in _SAME},
        "num_cells": cells.count,
        "cell_capacity": cells.capacity,
        "standalone_capacities": cells.standalone,
        "evaluation_slots": evaluation.slots,
    }


def extra_dispatch(schedule: ScheduleConfig) -> float | None:
    """phi; for a target staleness the nearest that is possible, because the target is refused."""
    phi = schedule.phi
    if phi is None or schedule.staleness is None:
        return phi
    batch = max(1, schedule.groups_per_batch)
    return max(0, round(phi * batch)) / batch


def placed(mistake: str) -> str:
    """A mistake of a field, said of the key that the field comes from."""
    found = _FIELD.match(mistake)
    if found is None:
        return f"schedule: {mistake}"
    name, rest = found.groups()
    return _PATHS.get(name, f"schedule.{name}") + rest
