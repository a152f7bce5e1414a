"""The trackers that a run file asks for, each loaded only then."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType

from gyre.config.run_sections import TrackersConfig
from gyre.observability.trackers.aside import Trackers
from gyre.observability.trackers.tracked import TrackedRun, kept_id
from gyre.types.errors import ConfigError
from gyre.types.ports import Tracker


def open_trackers(
    section: TrackersConfig,
    *,
    name: str,
    folder: Path,
    settings: Mapping[str, str | int | float | bool] | None = None,
    resumed_at: int | None = None,
) -> Trackers:
    """A library that is not installed is a ConfigError; whatever fails later is a warning."""
    modules = {kind: _module(kind) for kind in section.kinds}
    if not modules:
        return Trackers({})
    run = TrackedRun(
        name=name,
        id=kept_id(folder),
        folder=folder,
        project=section.project,
        settings={} if settings is None else settings,
        resumed_at=resumed_at,
    )
    return Trackers({kind: _opening(module, run) for kind, module in modules.items()})


def _module(kind: str) -> ModuleType:
    try:
        return importlib.import_module(f"gyre.observability.trackers.{kind}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != kind:
            raise
        message = f"trackers.{kind} needs {kind}: pip install 'gyre-rl[{kind}]'"
        raise ConfigError(message) from error


def _opening(module: ModuleType, run: TrackedRun) -> Callable[[], Tracker]:
    opened: Callable[[TrackedRun], Tracker] = module.opened
    return partial(opened, run)
