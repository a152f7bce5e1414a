"""Tasks that are read at once, and what sources read them from."""

import logging
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gyre.types.errors import TaskError, visible, wrap_errors
from gyre.types.tasks import Task

_log = logging.getLogger(__name__)
_Place = TypeVar("_Place")


class ListedTasks:
    """Tasks in the order given, each with an id of its own; TaskError otherwise.

    One that cannot be read is set aside with a warning, unless no other is left.
    `expected`: what there is none of where there is no task; None: there may be none.
    """

    def __init__(
        self, tasks: Iterable[Task | TaskError], where: str, *, expected: str | None = None
    ) -> None:
        found: dict[str, Task] = {}
        set_aside: list[TaskError] = []
        for task in tasks:
            if isinstance(task, TaskError):
                set_aside.append(task)
            elif task.id in found:
                raise TaskError(f"{where}: {task.id!r} is the name of two tasks")
            else:
                found[task.id] = task
        if set_aside and not found:
            raise TaskError(
                f"{set_aside[0]}"
                + (f"; none of {len(set_aside)} tasks can be read" if set_aside[1:] else "")
            )
        if expected is not None and not found:
            raise TaskError(f"{where}: expected {expected}, found none")
        for error in set_aside:
            _log.warning("gyre: a task is set aside: %s", visible(str(error)))
        self._tasks = list(found.values())
        self.set_aside = tuple(set_aside)
        """Why others of the source are not among them."""

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, index: int) -> Task:
        return self._tasks[index]


def read_each(
    read: Callable[[_Place], Task], places: Iterable[_Place]
) -> Iterator[Task | TaskError]:
    """The task of each place, or why it cannot be read."""
    for place in places:
        try:
            yield read(place)
        except TaskError as error:
            yield error


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
