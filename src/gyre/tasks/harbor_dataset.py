"""A dataset.toml: tasks by name, each with the digest of all that its folder holds."""

import fnmatch
import hashlib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gyre.tasks import safe_paths as within
from gyre.tasks.harbor_toml import TASK_FILE, read_task_toml
from gyre.types.errors import TaskError

DATASET_FILE = "dataset.toml"
FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
FOLDERS = ("environment", "tests", "solution", "steps")
"""What counts as the task; anything else beside it may change."""
LEFT_OUT = ("__pycache__", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~", ".harborignore")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
DIGEST = re.compile(r"sha256:[a-f0-9]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTask:
    """A task of a dataset."""

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
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), DatasetManifest)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        message = f"{path}: {error}"
        raise TaskError(message) from error
    by_name = _by_name(folder)
    folders = []
    for number, one in enumerate(found.tasks):
        where = f"{path}: tasks[{number}]"
        if not NAME.fullmatch(one.name) or ".." in one.name:
            message = f"{where}.name: expected ORG/NAME, found {one.name!r}"
            raise TaskError(message)
        if not DIGEST.fullmatch(one.digest):
            message = f"{where}.digest: expected sha256: and 64 hex digits, found {one.digest!r}"
            raise TaskError(message)
        if one.name not in by_name:
            message = f"{where}: expected a folder with the task {one.name}, found none"
            raise TaskError(message)
        task = by_name[one.name]
        if one.digest != (now := digest(task)):
            message = f"{where}: {task}: expected {one.digest}, found {now}"
            raise TaskError(message)
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
    within.check(folder, str(folder))
    found = [folder / name for name in FILES if (folder / name).is_file()]
    for name in FOLDERS:
        found += [path for path in (folder / name).rglob("*") if path.is_file()]
    return [path for path in found if not _is_left_out(path.relative_to(folder))]


def _is_left_out(path: Path) -> bool:
    return any(fnmatch.fnmatch(part, pattern) for part in path.parts for pattern in LEFT_OUT)


def _by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in within.folders_with(folder, TASK_FILE, depth=2):
        told = read_task_toml(one / TASK_FILE)
        if told.task is not None:
            found[told.task.name] = one
    return found
