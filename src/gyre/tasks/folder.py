"""Gyre's own task folders and JSONL task files.

A folder of task folders: task.toml, and beside it `files` and `evaluation` where there are any.

`files` is what the workspace begins with; `evaluation` is what only the evaluator sees.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from gyre.types.errors import TaskError
from gyre.types.tasks import CountedTests, EvaluationRule, Task

NOT_DESCRIBED = ("steps", "steps_reward", "solution", "files_over")
"""What only folders of other formats say of a task."""


def task(data: Mapping[str, Any], *, where: str, folder: Path, name: str | None = None) -> Task:
    """The task; folders that it names are looked for beside its description.

    With a name, that is its id, and `files` and `evaluation` are its folders where they exist.
    """
    table: dict[str, Any] = {"files": None} | dict(data)
    rule = table.get("evaluation")
    if name is not None:
        _unsaid("id", data, where)
        _unsaid("files", data, where)
        table |= {"id": name, "files": "files" if (folder / "files").is_dir() else None}
        if isinstance(rule, dict) and (folder / "evaluation").is_dir():
            _unsaid("files", rule, f"{where}: evaluation")
            table["evaluation"] = rule = rule | {"files": "evaluation"}
    _known(table, Task, where)
    if isinstance(rule, dict):
        _known(rule, EvaluationRule, f"{where}: evaluation")
    try:
        found = msgspec.convert(table, Task)
    except msgspec.ValidationError as error:
        message = f"{where}: {error}"
        raise TaskError(message) from error
    _possible(found, where)
    return replace(
        found,
        files=_folder(found.files, folder, where),
        evaluation=replace(found.evaluation, files=_folder(found.evaluation.files, folder, where)),
    )


def _known(data: Mapping[str, Any], kind: type[Task | EvaluationRule], where: str) -> None:
    names = [entry.name for entry in fields(kind) if entry.name not in NOT_DESCRIBED]
    for key in data:
        if key not in names:
            message = f"{where}: {key}: unknown key; known here: {', '.join(names)}"
            raise TaskError(message)


def _unsaid(key: str, data: Mapping[str, Any], where: str) -> None:
    if key in data:
        message = f"{where}: {key}: said by the task's folder already"
        raise TaskError(message)


def _folder(named: str | None, folder: Path, where: str) -> str | None:
    if named is None:
        return None
    path = (folder / named).resolve()
    if not path.is_dir():
        message = f"{where}: {named}: expected a folder"
        raise TaskError(message)
    return str(path)


def _possible(found: Task, where: str) -> None:
    rule = found.evaluation
    numbers = (rule.attempt_s, rule.retry_s, rule.lowest, rule.highest)
    must_hold = {
        "id: expected a name": bool(found.id),
        "instruction: expected some text": bool(found.instruction.strip()),
        "evaluation.argv: expected a command": bool(rule.argv) or rule.rubric is not None,
        "evaluation: expected finite numbers": all(math.isfinite(number) for number in numbers),
        "evaluation.attempt_s: expected more than 0": rule.attempt_s > 0,
        "evaluation.attempts: expected at least 1": rule.attempts >= 1,
        "evaluation.retry_s: expected 0 or more": rule.retry_s >= 0,
        "evaluation: expected lowest below highest": rule.lowest < rule.highest,
        "evaluation.baseline: expected less than highest": (
            rule.baseline is None or rule.baseline < rule.highest
        ),
        "evaluation.tests: expected a count or names for a report of tests": (
            rule.score not in ("junit.xml", "tests.json") or _counts(rule.tests)
        ),
    }
    for problem, holds in must_hold.items():
        if not holds:
            message = f"{where}: {problem}"
            raise TaskError(message)


def _counts(tests: CountedTests | None) -> bool:
    return tests is not None and (bool(tests.fail_to_pass) or (tests.count or 0) > 0)


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
            one = _read_line(line, f"{path}:{number}", path.parent)
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


def _read_line(line: bytes, where: str, folder: Path) -> Task:
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        message = f"{where}: {error}"
        raise TaskError(message) from error
    if not isinstance(data, dict):
        message = f"{where}: expected an object, found a {type(data).__name__}"
        raise TaskError(message)
    return task(data, where=where, folder=folder)
