"""A run file becomes its tree and its scheduler's shape, or a list of every mistake of both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.config.loader import LoadedConfig, load
from gyre.config.run_sections import RunConfig
from gyre.controller.shape import extra_dispatch, placed, shape_fields
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.dispatch import Boundary, Continuous
from gyre.scheduler.launching import LaunchOrder, LongestFirst, OldestFirst
from gyre.scheduler.placements import Async, Colocate, Elastic
from gyre.types.errors import ConfigError

_PLACEMENTS: dict[str, type[Elastic | Async | Colocate]] = {
    "elastic": Elastic,
    "async": Async,
    "colocate": Colocate,
}
_ORDERS: dict[str, type[LaunchOrder]] = {"oldest": OldestFirst, "longest": LongestFirst}
_NEEDED = ("schedule", "cells", "evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run that can be started."""

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
