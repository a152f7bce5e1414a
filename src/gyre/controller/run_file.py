"""Run file to RunConfig and SchedulerConfig."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.config.loader import LoadedConfig, load
from gyre.config.run_config import CellsConfig, HeldOutEvalConfig, RunConfig, ScheduleConfig
from gyre.scheduler.config import SCHEDULE_FIELDS, SchedulerConfig
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Elastic,
    LaunchOrder,
    LongestFirst,
    OldestFirst,
)
from gyre.types.errors import ConfigError

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
        **{name: getattr(schedule, name) for name in SCHEDULE_FIELDS},
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


_PLACEMENTS: dict[str, type[Elastic | Async | Colocate]] = {
    "elastic": Elastic,
    "async": Async,
    "colocate": Colocate,
}
_ORDERS: dict[str, type[LaunchOrder]] = {"oldest": OldestFirst, "longest": LongestFirst}
_NEEDED = ("schedule", "cells", "evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run file that was read and checked: its settings, and the scheduler's."""

    config: RunConfig
    shape: SchedulerConfig
    loaded: LoadedConfig
    """Where its values come from."""


def read_run(path: Path, overrides: Iterable[str] = ()) -> RunFile:
    """What the file and the values beside it describe; refused with all that is wrong (SPEC 10)."""
    return checked(load(path, overrides))


def checked(loaded: LoadedConfig) -> RunFile:
    """The same for what has been loaded; the shape is asked as soon as its own tables are sound."""
    if not all(name in loaded.sections for name in _NEEDED):
        raise loaded.refusal()
    try:
        shape = _shape(loaded.sections)
    except ConfigError as error:
        raise loaded.refusal([placed(line) for line in str(error).splitlines()]) from error
    return RunFile(config=loaded.config, shape=shape, loaded=loaded)


def _shape(sections: Mapping[str, Any]) -> SchedulerConfig:
    schedule = sections["schedule"]
    phi = extra_dispatch(schedule)
    return SchedulerConfig(
        **shape_fields(schedule, sections["cells"], sections["evaluation"]),
        dispatch=Continuous(depth=schedule.depth) if phi is None else Boundary(extra_dispatch=phi),
        placement=_PLACEMENTS[schedule.placement](streaming=schedule.streaming),
        launch_order=_ORDERS[schedule.launch_order](),
    )
