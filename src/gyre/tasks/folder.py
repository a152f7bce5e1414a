"""A folder of task folders: task.toml, and beside it `files` and `evaluation` where there are any.

`files` is what the workspace begins with; `evaluation` is what only the evaluator sees.
"""

import tomllib
from pathlib import Path

from gyre.tasks.described import task
from gyre.types.errors import TaskError
from gyre.types.tasks import Task

TASK_FILE = "task.toml"


class FolderTasks:
    """The tasks of a folder in the order of their names, which are their ids; read at once."""

    def __init__(self, folder: Path) -> None:
        try:
            paths = sorted(folder.glob(f"*/{TASK_FILE}"), key=lambda path: path.parent.name)
        except OSError as error:
            message = f"{folder}: {error}"
            raise TaskError(message) from error
        if not paths:
            message = f"{folder}: expected folders with a {TASK_FILE}, found none"
            raise TaskError(message)
        self._tasks = [_read(path) for path in paths]

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, index: int) -> Task:
        return self._tasks[index]


def _read(path: Path) -> Task:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path}: {error}"
        raise TaskError(message) from error
    return task(data, where=str(path), folder=path.parent, name=path.parent.name)
