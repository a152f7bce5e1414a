"""Turns the arguments of a rollout command into its spec, checked as a run file is.

gyre rollout TASKS --model tiny --harness mini_swe_agent --n 4
"""

import tomllib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gyre.config.loader import loaded
from gyre.config.run_config import RunConfig
from gyre.model.checkpoint_store import CHECKPOINTS, VERSION
from gyre.storage import files
from gyre.tasks.registry import section_for
from gyre.types.errors import ConfigError

OF_TRAINING = ("preset", "schedule", "cells", "evaluation", "checkpoint", "trackers")
"""Tables of a run file that say nothing about executions."""
MOST_FOLDERS = 10_000
ASKED_FILE = "rollout.json"
"""Says what the rollout of a folder is of."""
FORMAT = 1
MAY_CHANGE = ("run", "schedule", "cells", "proxy", "router", "checkpoint", "trackers")
"""Tables about where and how fast, not about what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """The arguments of a rollout command."""

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
    def of(cls, args: Namespace) -> "EvalArguments":
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
class ServedWeights:
    """The weights that a rollout serves: a named model, or a checkpoint of a run."""

    model: str
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSpec:
    """Which executions run without training, on which weights, and in which folder."""

    config: RunConfig
    folder: Path
    members: int
    """N: executions of each task."""
    concurrency: int
    """Executions at once."""
    weights: ServedWeights
    engines: tuple[str, ...] = ()
    """Addresses; none: one engine is started."""
    engine_key: Path | None = None
    """File with the key that engines at these addresses ask for."""


def planned(
    asked: EvalArguments,
    weights: ServedWeights,
    folder: Path,
    *,
    where: str,
    engine_key: Path | None,
) -> EvalSpec:
    """What is to be done; ConfigError with all that is wrong."""
    config = rollout_config(asked, where=where, model=weights.model)
    return EvalSpec(
        config=replace(config, run=replace(config.run, folder=str(folder.absolute()))),
        folder=folder,
        members=asked.members,
        concurrency=asked.concurrency,
        weights=weights,
        engines=asked.engines,
        engine_key=engine_key,
    )


def rollout_config(asked: EvalArguments, *, where: str, model: str) -> RunConfig:
    """The tree that the command line and the run file beside it come to; or all its mistakes."""
    if asked.members < 1 or asked.concurrency < 1:
        message = f"expected --n and --concurrency of 1 or more, found {asked.members} and "
        raise ConfigError(f"{message}{asked.concurrency}")
    if asked.harness is not None and asked.argv:
        raise ConfigError(f"expected --harness {asked.harness} or a command after --, found both")
    given = {} if asked.config is None else _read(asked.config)
    tables: dict[str, Any] = {
        name: dict(table) if isinstance(table, Mapping) else table
        for name, table in given.items()
        if name not in OF_TRAINING
    }
    cells = given.get("cells")
    tables["model"] = {**tables.get("model", {}), "name": model}
    tables["tasks"] = asdict(section_for(asked.tasks))
    # One process, even if the file is of a run that has several.
    tables["proxy"] = {"port": 0, **tables.get("proxy", {}), "shards": 1}
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
        raise ConfigError(
            "expected --harness NAME, a command after --, or --config with a [harness]"
        )
    return loaded(where, tables, asked.overrides).config


def folder_for(wanted: Path | None, *, beside: Path) -> Path:
    """The folder that is asked for, new or a rollout's; without one the first free of a series."""
    if wanted is not None:
        is_new = not wanted.exists() or (wanted.is_dir() and not any(wanted.iterdir()))
        if not is_new and not (wanted / ASKED_FILE).is_file():
            raise ConfigError(
                f"--run {wanted}: expected a new folder, or one with a rollout that may go on, "
                "found one with something else in it"
            )
        return wanted
    for number in range(1, MOST_FOLDERS):
        folder = beside.parent / f"{beside.name}-{number:03d}"
        if not folder.exists():
            return folder
    raise ConfigError(f"{beside}: expected fewer than {MOST_FOLDERS} folders")


def remember(plan: EvalSpec, tasks: list[str]) -> None:
    """The folder says what it is of; ConfigError if that is something else already.

    A rollout goes on only with what it began with, or its numbers would be of two things.
    """
    path = plan.folder / ASKED_FILE
    wanted = _asked(plan, tasks)
    if not path.exists():
        files.replace(path, msgspec.json.encode(wanted))
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        message = f"{path}: expected what a rollout was asked for: {error}"
        raise ConfigError(message) from error
    differ = [name for name in sorted({*wanted, *known}) if wanted.get(name) != known.get(name)]
    if differ:
        message = (
            f"--run {plan.folder}: holds a rollout that was asked for something else; "
            f"these differ: {', '.join(differ)}"
        )
        raise ConfigError(message)


def _asked(plan: EvalSpec, tasks: list[str]) -> dict[str, Any]:
    """As it reads back from JSON."""
    tables = {name: table for name, table in asdict(plan.config).items() if name not in MAY_CHANGE}
    asked = {
        "format": FORMAT,
        "executions of a task": plan.members,
        "names of tasks": tasks,
        "weights": asdict(plan.weights),
        **tables,
    }
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asked))
    return read


def weights_of(subject: str, version: int | None) -> tuple[ServedWeights, Path | None]:
    """A model by name or folder, or the weights of a run's checkpoint and its folder."""
    folder = Path(subject)
    versions = folder / CHECKPOINTS
    if not versions.is_dir():
        if version is not None:
            raise ConfigError(f"--version {version}: expected a run with weights, found {subject}")
        return ServedWeights(model=subject), None
    found = _kept(versions)
    wanted = max(found, default=None) if version is None else version
    if wanted is None or wanted not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        asked = "a checkpoint" if version is None else f"version {version}"
        raise ConfigError(f"{versions}: expected {asked}; found versions: {known}")
    return ServedWeights(model=str(found[wanted].resolve()), version=wanted), folder


def _kept(folder: Path) -> dict[int, Path]:
    named = ((VERSION.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(name[1]): path for name, path in named if name and path.is_dir()}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: expected a run file: {error}") from error


def model_in(config: Path | None) -> str | None:
    """What a run file trains; None where it does not say, or there is none."""
    model = None if config is None else _read(config).get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) else None
