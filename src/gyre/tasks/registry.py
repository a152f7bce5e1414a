"""Opens the task source that a run file or a command line names."""

from pathlib import Path
from typing import assert_never

from gyre.config.run_config import (
    DeepSweTasksConfig,
    FolderTasksConfig,
    HarborTasksConfig,
    JsonlTasksConfig,
    Nl2RepoTasksConfig,
    PythonTasksConfig,
    TasksConfig,
)
from gyre.tasks import safe_paths
from gyre.tasks.deepswe import DeepSweTasks
from gyre.tasks.folder import FolderTasks, JsonlTasks
from gyre.tasks.generated import generated
from gyre.tasks.harbor import DATASET_FILE, HarborTasks
from gyre.tasks.nl2repo import SPECIFICATION, Nl2RepoTasks
from gyre.types.errors import ConfigError
from gyre.types.places import TaskSource

WITH_IMAGES = ("docker",)
"""Kinds of sandboxes in which a task gets its own image."""
CACHE = Path("~/.cache/gyre/tasks")
"""Where archives are unpacked."""


def open_tasks(section: TasksConfig, *, where: str = "tasks") -> TaskSource:
    """The tasks that a table of the run file names; `where` is the table, for mistakes."""
    match section:
        case PythonTasksConfig():
            return generated(section.source)
        case FolderTasksConfig():
            return FolderTasks(_place(section.path, where))
        case JsonlTasksConfig():
            return JsonlTasks(_place(section.path, where))
        case HarborTasksConfig():
            return HarborTasks(_place(section.path, where))
        case DeepSweTasksConfig():
            return DeepSweTasks(_place(section.path, where))
        case Nl2RepoTasksConfig():
            tests = _place(section.tests, f"{where}.tests")
            return Nl2RepoTasks(_place(section.path, where), tests=tests)
        case _:
            assert_never(section)


def refuse_unfit(tasks: TaskSource, *, sandbox: str) -> None:
    """ConfigError for the first task that a sandbox of this kind cannot run as it is meant."""
    for task in (tasks.get(index) for index in range(len(tasks))):
        if not task.needs.portable and sandbox not in WITH_IMAGES:
            raise ConfigError(
                f"task {task.id}: needs its image and paths of its own, which a sandbox of kind "
                f"{sandbox} has not; expected sandbox.kind = {' or '.join(WITH_IMAGES)}, or "
                "metadata.rl.portable in its task.toml"
            )


def section_for(text: str) -> TasksConfig:
    """What a command line means by it: MODULE:FUNCTION, a .jsonl file, or a folder by its look."""
    path = Path(text)
    if not path.exists() and ":" in text:
        return PythonTasksConfig(kind="python", source=text)
    if path.suffix == ".jsonl":
        return JsonlTasksConfig(kind="jsonl", path=text)
    folder = _place(text, "tasks")
    if folder.is_dir() and next(safe_paths.folders_with(folder, SPECIFICATION, depth=2), None):
        return Nl2RepoTasksConfig(kind="nl2repo", path=text, tests=f"{text}/tests")
    is_harbor = (folder / DATASET_FILE).is_file() or (folder / "instruction.md").is_file()
    if is_harbor or [*folder.glob("*/instruction.md"), *folder.glob("*/steps")]:
        return HarborTasksConfig(kind="harbor", path=text)
    return FolderTasksConfig(kind="folder", path=text)


def _place(text: str, where: str) -> Path:
    """What exists there; an archive is unpacked first."""
    path = Path(text).expanduser()
    if not path.exists():
        raise ConfigError(f"{where}.path: {path}: expected a file or folder of tasks, found none")
    return safe_paths.unpacked(path, CACHE.expanduser()) if safe_paths.is_archive(path) else path
