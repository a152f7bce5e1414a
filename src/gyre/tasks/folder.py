"""Gyre's own task folders and JSONL task files.

A folder of task folders: task.toml, and beside it `files` and `evaluation` where there are any.

`files` is what the workspace begins with; `evaluation` is what only the evaluator sees.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from gyre.tasks.task_list import ListedTasks, read_toml, refuse_unknown, refuse_unmet
from gyre.types.errors import TaskError, wrap_errors
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
    with wrap_errors(TaskError, where, msgspec.ValidationError):
        found = msgspec.convert(table, Task)
    _possible(found, where)
    return replace(
        found,
        files=_folder(found.files, folder, where),
        evaluation=replace(found.evaluation, files=_folder(found.evaluation.files, folder, where)),
    )


def _known(data: Mapping[str, Any], kind: type[Task | EvaluationRule], where: str) -> None:
    names = [entry.name for entry in fields(kind) if entry.name not in NOT_DESCRIBED]
    refuse_unknown(data, names, f"{where}: ")


def _unsaid(key: str, data: Mapping[str, Any], where: str) -> None:
    if key in data:
        raise TaskError(f"{where}: {key}: said by the task's folder already")


def _folder(named: str | None, folder: Path, where: str) -> str | None:
    if named is None:
        return None
    path = (folder / named).resolve()
    if not path.is_dir():
        raise TaskError(f"{where}: {named}: expected a folder")
    return str(path)


def _possible(found: Task, where: str) -> None:
    rule = found.evaluation
    tests = rule.tests or CountedTests()
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
            rule.score not in ("junit.xml", "tests.json")
            or bool(tests.fail_to_pass)
            or (tests.count or 0) > 0
        ),
    }
    refuse_unmet(must_hold, where)


TASK_FILE = "task.toml"


class FolderTasks(ListedTasks):
    """The tasks of a folder in the order of their names, which are their ids; read at once."""

    def __init__(self, folder: Path) -> None:
        with wrap_errors(TaskError, folder):
            paths = sorted(folder.glob(f"*/{TASK_FILE}"), key=lambda path: path.parent.name)
        super().__init__(map(_read, paths), str(folder), expected=f"folders with a {TASK_FILE}")


def _read(path: Path) -> Task:
    return task(read_toml(path), where=str(path), folder=path.parent, name=path.parent.name)


class JsonlTasks(ListedTasks):
    """The tasks of a file in its order, each with its own id; read at once."""

    def __init__(self, path: Path) -> None:
        with wrap_errors(TaskError, path):
            lines = path.read_bytes().splitlines()
        tasks: list[Task] = []
        seen: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            one = _read_line(line, f"{path}:{number}", path.parent)
            if one.id in seen:
                message = f"{path}:{number}: {one.id!r} is the id of line {seen[one.id]} already"
                raise TaskError(message)
            seen[one.id] = number
            tasks.append(one)
        super().__init__(tasks, str(path), expected="a task a line")


def _read_line(line: bytes, where: str, folder: Path) -> Task:
    with wrap_errors(TaskError, where, (msgspec.MsgspecError, RecursionError)):
        data = msgspec.json.decode(line)
    if not isinstance(data, dict):
        raise TaskError(f"{where}: expected an object, found a {type(data).__name__}")
    return task(data, where=where, folder=folder)
