"""Harbor's task folders: task.toml, instruction.md, environment, tests, solution and steps.

A portable task begins with `environment/files`; any other begins in its image.
"""

import fnmatch
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from gyre.tasks import safe_paths
from gyre.tasks.task_list import ListedTasks, read_text, read_toml, refuse_unknown, refuse_unmet
from gyre.types.errors import TaskError, wrap_errors
from gyre.types.tasks import EvaluationRule, ResourceNeeds, Task, TaskStep

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
    data = read_toml(path)
    if "version" in data:
        data.setdefault("schema_version", data.pop("version"))
    data["training"] = _training(data.get("metadata", {}), str(path))
    _old_names(data.get("environment"))
    with wrap_errors(TaskError, path, msgspec.ValidationError):
        found = msgspec.convert(data, TaskToml)
    _possible(found, str(path))
    return found


def _training(metadata: object, where: str) -> object:
    ours = metadata.get("rl", {}) if isinstance(metadata, Mapping) else {}
    if not isinstance(ours, Mapping):
        raise TaskError(f"{where}: metadata.rl: expected a table")
    known = [entry.name for entry in fields(TrainingTable)]
    refuse_unknown(ours, known, f"{where}: metadata.rl.")
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
    refuse_unmet(must_hold, where)


DATASET_FILE = "dataset.toml"
FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
FOLDERS = ("environment", "tests", "solution", "steps")
"""What counts as the task; anything else beside it may change."""
LEFT_OUT = ("__pycache__", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~", ".harborignore")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
DIGEST = re.compile(r"sha256:[a-f0-9]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTask:
    """One task in a dataset.toml."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """The part of a dataset.toml that says which tasks there are."""

    dataset: dict[str, object]
    tasks: tuple[DatasetTask, ...] = field(default_factory=tuple)


def members(folder: Path) -> list[Path]:
    """Folders of the manifest's tasks, in its order, each as its digest says; else TaskError."""
    path = folder / DATASET_FILE
    with wrap_errors(TaskError, path, msgspec.ValidationError):
        found = msgspec.convert(read_toml(path), DatasetManifest)
    by_name = _by_name(folder)
    folders = []
    for number, one in enumerate(found.tasks):
        where = f"{path}: tasks[{number}]"
        if not NAME.fullmatch(one.name) or ".." in one.name:
            raise TaskError(f"{where}.name: expected ORG/NAME, found {one.name!r}")
        if not DIGEST.fullmatch(one.digest):
            message = f"{where}.digest: expected sha256: and 64 hex digits, found {one.digest!r}"
            raise TaskError(message)
        if one.name not in by_name:
            raise TaskError(f"{where}: expected a folder with the task {one.name}, found none")
        task = by_name[one.name]
        if one.digest != (now := digest(task)):
            raise TaskError(f"{where}: {task}: expected {one.digest}, found {now}")
        folders.append(task)
    return folders


def digest(folder: Path) -> str:
    """`sha256:` of the names and contents of all that belongs to the task."""
    whole = hashlib.sha256()
    for path in sorted(_files(folder), key=lambda path: path.relative_to(folder).as_posix()):
        with path.open("rb") as file:
            inner = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()}\0{inner}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def _files(folder: Path) -> list[Path]:
    safe_paths.check(folder, str(folder))
    found = [folder / name for name in FILES if (folder / name).is_file()]
    for name in FOLDERS:
        found += [path for path in (folder / name).rglob("*") if path.is_file()]
    return [path for path in found if not _is_left_out(path.relative_to(folder))]


def _is_left_out(path: Path) -> bool:
    return any(fnmatch.fnmatch(part, pattern) for part in path.parts for pattern in LEFT_OUT)


def _by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in safe_paths.folders_with(folder, TASK_FILE, depth=2):
        table = read_task_toml(path / TASK_FILE)
        if table.task is not None:
            found[table.task.name] = path
    return found


TESTS_AT = "/tests"
RESULTS_AT = "/logs/verifier"
WORKDIR = "/app"
"""Places that Harbor's scripts know; the last unless the task says another."""
FOLDERS_DEEP = 6
EXPECTED = f"folders with a {TASK_FILE}"
RUN_TESTS = ("bash", "-c", 'exec bash "$GYRE_EVALUATION/test.sh"')
CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
GIVEN = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class HarborTasks(ListedTasks):
    """The tasks of a folder, or of a dataset's manifest in its order; read at once."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise TaskError(f"{folder}: expected a folder")
        if (folder / DATASET_FILE).is_file():
            folders = members(folder)
        else:
            folders = list(safe_paths.folders_with(folder, TASK_FILE, depth=FOLDERS_DEEP))
        super().__init__(map(read_task, folders), str(folder), expected=EXPECTED)


def read_task(folder: Path) -> Task:
    """The task of one folder; its id is the package's name, or else the folder's."""
    folder = folder.resolve()
    where = str(folder)
    safe_paths.check(folder, where)
    table = read_task_toml(folder / TASK_FILE)
    steps = tuple(_step(folder, table, step) for step in table.steps)
    environment = folder / "environment"
    files = environment / "files"
    portable = table.training.portable
    if not portable and table.environment.docker_image is None and not environment.is_dir():
        raise TaskError(f"{where}: expected a folder environment, or environment.docker_image")
    return Task(
        id=folder.name if table.task is None else table.task.name,
        instruction=steps[0].instruction if steps else _instruction(folder),
        files=str(files) if portable and files.is_dir() else None,
        evaluation=steps[-1].evaluation
        if steps
        else _evaluation(folder, None, table, table.verifier),
        variables=_variables(table.environment.env, f"{where}: environment.env"),
        metadata=table.words,
        needs=_needs(environment, table.environment, portable=portable),
        agent_s=_together(steps) if steps else table.agent.timeout_sec,
        overall_s=table.training.overall_timeout_sec,
        preserve=table.training.preserve,
        steps=steps,
        steps_reward=table.multi_step_reward_strategy or "mean",
        solution=_solution(folder),
    )


def _solution(folder: Path) -> str | None:
    return str(folder / "solution") if (folder / "solution" / "solve.sh").is_file() else None


def _instruction(folder: Path) -> str:
    path = folder / "instruction.md"
    lines = read_text(path).splitlines(keepends=True)
    # Marks by which copies of a benchmark are found in training data are not for the agent.
    while lines and (CANARY.match(lines[0].strip()) or not lines[0].strip()):
        lines.pop(0)
    text = "".join(lines)
    if not text.strip():
        raise TaskError(f"{path}: expected some text")
    return text


def _evaluation(
    folder: Path, step: Path | None, table: TaskToml, verifier: VerifierTable
) -> EvaluationRule:
    """By tests/test.sh, whose exit status says nothing; a step's own files lie over the task's."""
    own = folder / "tests" if step is None else step / "tests"
    tests = [path for path in dict.fromkeys((folder / "tests", own)) if path.is_dir()]
    if not any((path / "test.sh").is_file() for path in tests):
        raise TaskError(f"{own / 'test.sh'}: expected a file")
    ours = table.training
    return EvaluationRule(
        argv=RUN_TESTS,
        score="reward",
        reward_key=ours.reward_key,
        gate=ours.gate,
        baseline=ours.baseline,
        sentinels=ours.sentinels,
        evidence=ours.evidence,
        files=str(tests[0]),
        files_over=str(tests[1]) if len(tests) > 1 else None,
        files_at=TESTS_AT,
        results_at=RESULTS_AT,
        variables=_variables(verifier.env or table.verifier.env, f"{folder}: verifier.env"),
        attempt_s=verifier.timeout_sec,
        attempts=ours.eval_retries + 1,
    )


def _step(folder: Path, table: TaskToml, step: StepTable) -> TaskStep:
    at = safe_paths.child(folder / "steps", step.name, f"{folder}: steps")
    if not at.is_dir() or at.parent != folder / "steps":
        raise TaskError(f"{folder}: steps.{step.name}: expected a folder of that name in steps")
    least, agent_s = step.min_reward, step.agent.timeout_sec
    if isinstance(least, int | float):
        least = {table.training.reward_key: float(least)}
    return TaskStep(
        name=step.name,
        instruction=_instruction(at),
        files=str(at / "workdir") if (at / "workdir").is_dir() else None,
        evaluation=_evaluation(folder, at, table, step.verifier),
        agent_s=table.agent.timeout_sec if agent_s is None else agent_s,
        least=least or {},
        solution=_solution(at),
    )


def _together(steps: Sequence[TaskStep]) -> float | None:
    """How long agents of all steps may take, if every one of them is bounded."""
    known = [step.agent_s for step in steps if step.agent_s is not None]
    return sum(known) if len(known) == len(steps) else None


def _needs(folder: Path, table: EnvironmentTable, *, portable: bool) -> ResourceNeeds:
    dockerfile = folder / "Dockerfile"
    return ResourceNeeds(
        image=table.docker_image,
        build=str(folder) if table.docker_image is None and dockerfile.is_file() else None,
        build_s=table.build_timeout_sec,
        workdir=table.workdir or _workdir(dockerfile),
        cpus=table.cpus,
        memory_mb=table.memory_mb,
        storage_mb=table.storage_mb,
        portable=portable,
    )


def _workdir(dockerfile: Path) -> str:
    """The last one that the file names."""
    try:
        lines = dockerfile.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return WORKDIR
    named = [words[1] for line in lines if (words := line.split())[:1] == ["WORKDIR"] and words[1:]]
    return named[-1] if named and named[-1].startswith("/") else WORKDIR


def _variables(said: Mapping[str, str], where: str) -> dict[str, str]:
    """With defaults filled in; nothing of this machine's environment goes to a task."""

    def filled(name: str, value: str) -> str:
        def given(found: re.Match[str]) -> str:
            if found[2] is None:
                raise TaskError(
                    f"{where}.{name}: {found[0]}: expected a value or a default, "
                    "because tasks get nothing of this machine's environment"
                )
            return found[2]

        return GIVEN.sub(given, value)

    return {name: filled(name, value) for name, value in said.items()}
