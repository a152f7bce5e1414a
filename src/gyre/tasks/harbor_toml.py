"""Harbor's task.toml, schema 1.4, with its defaults; our own words stand under [metadata.rl]."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from gyre.types.errors import TaskError

TASK_FILE = "task.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTable:
    """[environment]: where agent and verifier run."""

    docker_image: str | None = None
    build_timeout_sec: float = 600.0
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    network_mode: Literal["no-network", "public", "allowlist"] = "public"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierTable:
    """[verifier]: how the work is judged."""

    timeout_sec: float = 600.0
    env: dict[str, str] = field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTable:
    """[agent]: bounds of the agent."""

    timeout_sec: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """One of [[steps]]."""

    name: str
    agent: AgentTable = field(default_factory=AgentTable)
    verifier: VerifierTable = field(default_factory=VerifierTable)
    min_reward: float | dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTable:
    """[task]: what the task is called where tasks are shared."""

    name: str
    version: str | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTable:
    """[metadata.rl]: what training needs beyond Harbor's words; unknown keys are refused."""

    reward_key: str = "reward"
    gate: str | None = None
    baseline: float | None = None
    sentinels: tuple[float, ...] = (-1.0,)
    evidence: tuple[str, ...] = ()
    eval_retries: int = 2
    overall_timeout_sec: float | None = None
    preserve: bool = False
    portable: bool = False
    """Whether its scripts find their places by variables, and need no image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskToml:
    """A whole task.toml; tables and keys that are not named here are Harbor's own affair."""

    schema_version: str = "1.4"
    task: PackageTable | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    verifier: VerifierTable = field(default_factory=VerifierTable)
    agent: AgentTable = field(default_factory=AgentTable)
    environment: EnvironmentTable = field(default_factory=EnvironmentTable)
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[StepTable, ...] = ()
    training: TrainingTable = field(default_factory=TrainingTable)

    @property
    def words(self) -> dict[str, str]:
        """The metadata for people and reports, what is no text as JSON."""
        plain = {key: value for key, value in self.metadata.items() if key != "rl"}
        return {
            key: value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in plain.items()
        }


def read_task_toml(path: Path) -> TaskToml:
    """TaskError with the place of what is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path}: {error}"
        raise TaskError(message) from error
    if "version" in data:
        data.setdefault("schema_version", data.pop("version"))
    data["training"] = _training(data.get("metadata", {}), str(path))
    _old_names(data.get("environment"))
    try:
        found = msgspec.convert(data, TaskToml)
    except msgspec.ValidationError as error:
        message = f"{path}: {error}"
        raise TaskError(message) from error
    _possible(found, str(path))
    return found


def _training(metadata: object, where: str) -> object:
    ours = metadata.get("rl", {}) if isinstance(metadata, Mapping) else {}
    if not isinstance(ours, Mapping):
        message = f"{where}: metadata.rl: expected a table"
        raise TaskError(message)
    known = [one.name for one in fields(TrainingTable)]
    for key in ours:
        if key not in known:
            message = f"{where}: metadata.rl.{key}: unknown key; known here: {', '.join(known)}"
            raise TaskError(message)
    return ours


def _old_names(environment: object) -> None:
    """Names that Harbor had once and still takes."""
    if not isinstance(environment, dict):
        return
    if environment.pop("allow_internet", None) is False:
        environment.setdefault("network_mode", "no-network")
    for old in ("memory", "storage"):
        said = environment.pop(old, None)
        if isinstance(said, str) and said[:-1].replace(".", "", 1).isdigit():
            in_mb = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(said[-1].upper())
            if in_mb is not None:
                environment.setdefault(f"{old}_mb", int(float(said[:-1]) * in_mb))


def _possible(found: TaskToml, where: str) -> None:
    ours = found.training
    times = {
        "verifier.timeout_sec": found.verifier.timeout_sec,
        "agent.timeout_sec": found.agent.timeout_sec,
        "environment.build_timeout_sec": found.environment.build_timeout_sec,
        "metadata.rl.overall_timeout_sec": ours.overall_timeout_sec,
    }
    for step in found.steps:
        times[f"steps.{step.name}.agent.timeout_sec"] = step.agent.timeout_sec
        times[f"steps.{step.name}.verifier.timeout_sec"] = step.verifier.timeout_sec
    must_hold = {
        f"{name}: expected more than 0 seconds": math.isfinite(value) and value > 0
        for name, value in times.items()
        if value is not None
    } | {
        "environment.os: expected linux": found.environment.os.lower() == "linux",
        "environment.gpus: expected none": not found.environment.gpus,
        "metadata.rl.eval_retries: expected 0 or more": ours.eval_retries >= 0,
        "metadata.rl.baseline: expected 0 or more, and less than 1": (
            ours.baseline is None or 0 <= ours.baseline < 1
        ),
        "metadata.rl.reward_key: expected a name": bool(ours.reward_key),
        "metadata.rl.overall_timeout_sec: expected no less than agent.timeout_sec": (
            ours.overall_timeout_sec is None
            or found.agent.timeout_sec is None
            or ours.overall_timeout_sec >= found.agent.timeout_sec
        ),
        "steps: expected names that differ": (
            len({step.name.casefold() for step in found.steps}) == len(found.steps)
        ),
    }
    for problem, holds in must_hold.items():
        if not holds:
            message = f"{where}: {problem}"
            raise TaskError(message)
