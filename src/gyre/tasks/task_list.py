"""Tasks that are read at once, and what sources read them from."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gyre.types.errors import TaskError, wrap_errors
from gyre.types.tasks import Task


class ListedTasks:
    """Tasks in the order given, each with an id of its own; TaskError otherwise.

    `expected`: what there is none of where there is no task; None: there may be none.
    """

    def __init__(self, tasks: Iterable[Task], where: str, *, expected: str | None = None) -> None:
        found: dict[str, Task] = {}
        for task in tasks:
            if task.id in found:
                raise TaskError(f"{where}: {task.id!r} is the name of two tasks")
            found[task.id] = task
        if expected is not None and not found:
            raise TaskError(f"{where}: expected {expected}, found none")
        self._tasks = list(found.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, index: int) -> Task:
        return self._tasks[index]


def read_text(path: Path) -> str:
    """TaskError if it cannot be read."""
    with wrap_errors(TaskError, path, (OSError, ValueError)):
        return path.read_text(encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """TaskError if it cannot be read, or is no TOML."""
    with wrap_errors(TaskError, path, (ValueError, RecursionError)):
        return tomllib.loads(read_text(path))


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """TaskError for the first key that is none of these; `where` leads up to its name."""
    names = list(known)
    for key in table:
        if key not in names:
            raise TaskError(f"{where}{key}: unknown key; known here: {', '.join(names)}")


def refuse_unmet(must_hold: Mapping[str, bool], where: str) -> None:
    """TaskError for the first problem whose opposite does not hold."""
    for problem, holds in must_hold.items():
        if not holds:
            raise TaskError(f"{where}: {problem}")
