"""What a command line asks to be executed becomes the plan of a rollout, checked as a run file is.

gyre rollout TASKS --model tiny --harness mini_swe_agent --n 4
"""

import re
import tomllib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gyre.backends.tasks.open import section_for
from gyre.config.load import loaded
from gyre.words.errors import ConfigError
from gyre.words.run_sections import RunConfig

OF_TRAINING = ("preset", "schedule", "cells", "evaluation", "checkpoint", "trackers")
"""Tables of a run file that say nothing about executions."""
VERSION = re.compile(r"v(\d{6,})")
MOST_FOLDERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command line says."""

    tasks: str
    engines: tuple[str, ...]
    """Addresses of engines that are there already."""
    harness: str | None
    argv: tuple[str, ...]
    """The command of a harness that has no name."""
    members: int
    concurrency: int
    config: Path | None
    """A run file whose tables hold where nothing else is said."""
    overrides: tuple[str, ...]

    @classmethod
    def of(cls, args: Namespace) -> "Asked":
        """The options that `gyre rollout` and `gyre evaluate` share."""
        return cls(
            tasks=args.tasks,
            engines=tuple(args.engine),
            harness=args.harness,
            argv=tuple(args.argv),
            members=args.n,
            concurrency=args.concurrency,
            config=args.config,
            overrides=tuple(args.set),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What is served: a model as it is named, or a version that a run has published."""

    model: str
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Executions without training: which, of what, and where they are kept."""

    config: RunConfig
    folder: Path
    members: int
    """N: executions of each task."""
    concurrency: int
    """Executions at once."""
    weights: Weights
    engines: tuple[str, ...] = ()
    """Addresses; none: one engine is started."""
    engine_key: Path | None = None
    """File with the key that engines at these addresses ask for."""


def planned(
    asked: Asked, weights: Weights, folder: Path, *, where: str, engine_key: Path | None
) -> RolloutPlan:
    """What is to be done; ConfigError with all that is wrong."""
    return RolloutPlan(
        config=rollout_config(asked, where=where, model=weights.model),
        folder=folder,
        members=asked.members,
        concurrency=asked.concurrency,
        weights=weights,
        engines=asked.engines,
        engine_key=engine_key,
    )


def rollout_config(asked: Asked, *, where: str, model: str) -> RunConfig:
    """The tree that the command line and the run file beside it come to; or all its mistakes."""
    if asked.members < 1 or asked.concurrency < 1:
        message = f"expected --n and --concurrency of 1 or more, found {asked.members} and "
        raise ConfigError(f"{message}{asked.concurrency}")
    if asked.harness is not None and asked.argv:
        message = f"expected --harness {asked.harness} or a command after --, found both"
        raise ConfigError(message)
    given = {} if asked.config is None else _read(asked.config)
    tables: dict[str, Any] = {
        name: dict(table) if isinstance(table, Mapping) else table
        for name, table in given.items()
        if name not in OF_TRAINING
    }
    cells = given.get("cells")
    tables["model"] = {**tables.get("model", {}), "name": model}
    tables["tasks"] = asdict(section_for(asked.tasks))
    tables["proxy"] = {"port": 0, **tables.get("proxy", {})}
    # What a run has to say and a rollout has no use for.
    tables["schedule"] = {"groups_per_batch": 1, "executions_per_group": 2}
    tables["cells"] = {"count": 1, "capacity": asked.concurrency}
    if isinstance(cells, Mapping) and "engine" in cells:
        tables["cells"]["engine"] = cells["engine"]
    if asked.argv:
        tables["harness"] = {"kind": "command", "argv": list(asked.argv)}
    elif asked.harness is not None:
        tables["harness"] = {"kind": asked.harness}
    elif "harness" not in tables:
        message = "expected --harness NAME, a command after --, or --config with a [harness]"
        raise ConfigError(message)
    return loaded(where, tables, asked.overrides).config


def new_folder(wanted: Path | None, *, beside: Path) -> Path:
    """The folder that is asked for, if it is new; else the first free one of a series."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            message = f"--run {wanted}: expected a new folder, found one with something in it"
            raise ConfigError(message)
        return wanted
    for number in range(1, MOST_FOLDERS):
        folder = beside.parent / f"{beside.name}-{number:03d}"
        if not folder.exists():
            return folder
    message = f"{beside}: expected fewer than {MOST_FOLDERS} folders"
    raise ConfigError(message)


def weights_of(subject: str, version: int | None) -> tuple[Weights, Path | None]:
    """A model by name or folder, or a run's published weights and its folder."""
    folder = Path(subject)
    if not (folder / "weights").is_dir():
        if version is not None:
            message = f"--version {version}: expected a run with weights, found {subject}"
            raise ConfigError(message)
        return Weights(model=subject), None
    found = _published(folder / "weights")
    wanted = max(found, default=None) if version is None else version
    if wanted is None or wanted not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        asked = "published weights" if version is None else f"version {version}"
        message = f"{folder / 'weights'}: expected {asked}; found versions: {known}"
        raise ConfigError(message)
    return Weights(model=str(found[wanted].resolve()), version=wanted), folder


def _published(folder: Path) -> dict[int, Path]:
    named = ((VERSION.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(name[1]): path for name, path in named if name and path.is_dir()}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        message = f"--config {path}: expected a run file: {error}"
        raise ConfigError(message) from error


def model_in(config: Path | None) -> str | None:
    """What a run file trains; None where it does not say, or there is none."""
    model = None if config is None else _read(config).get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) else None
