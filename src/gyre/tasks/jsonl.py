"""A file of tasks, one JSON object a line; folders that they name are relative to the file."""

from pathlib import Path

import msgspec

from gyre.tasks.described import task
from gyre.types.errors import TaskError
from gyre.types.tasks import Task


class JsonlTasks:
    """The tasks of a file in its order, each with its own id; read at once."""

    def __init__(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            message = f"{path}: {error}"
            raise TaskError(message) from error
        self._tasks: list[Task] = []
        seen: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            one = _read(line, f"{path}:{number}", path.parent)
            if one.id in seen:
                message = f"{path}:{number}: {one.id!r} is the id of line {seen[one.id]} already"
                raise TaskError(message)
            seen[one.id] = number
            self._tasks.append(one)
        if not self._tasks:
            message = f"{path}: expected a task a line, found none"
            raise TaskError(message)

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, index: int) -> Task:
        return self._tasks[index]


def _read(line: bytes, where: str, folder: Path) -> Task:
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        message = f"{where}: {error}"
        raise TaskError(message) from error
    if not isinstance(data, dict):
        message = f"{where}: expected an object, found a {type(data).__name__}"
        raise TaskError(message)
    return task(data, where=where, folder=folder)
