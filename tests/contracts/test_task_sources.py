"""The contract of task sources, kept by folders and by files of lines."""

import json

import pytest
from tests.contracts import task_source as suite

from gyre.tasks.folder import FolderTasks, JsonlTasks


def toml(table, prefix=""):
    """Plain values first, then tables; JSON spells strings, numbers and lists as TOML does."""
    plain = [
        f"{key} = {json.dumps(value)}"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]
    inner = [
        f"[{prefix}{key}]\n{toml(value, f'{prefix}{key}.')}"
        for key, value in table.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*plain, *inner]) + "\n"


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Folders:
    def __init__(self, folder):
        self._folder = folder

    def write(self, name, *, said, rule, files):
        at = self._folder / name
        at.mkdir(exist_ok=True)
        (at / "task.toml").write_text(toml(said | {"evaluation": rule}))
        if files is not None:
            write_files(at / "files", files)

    def open(self):
        return FolderTasks(self._folder)


class Lines:
    def __init__(self, folder):
        self._folder = folder
        self._lines = {}

    def write(self, name, *, said, rule, files):
        line = {"id": name, **said, "evaluation": rule}
        if files is not None:
            write_files(self._folder / f"{name}-files", files)
            line["files"] = f"{name}-files"
        self._lines[name] = json.dumps(line)

    def open(self):
        path = self._folder / "tasks.jsonl"
        path.write_text("\n".join(self._lines.values()) + "\n")
        return JsonlTasks(path)


@pytest.mark.parametrize("promise", suite.EVERY_SOURCE, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", [Folders, Lines])
def test_a_source_keeps_the_promise_that(kind, promise, tmp_path):
    promise(kind(tmp_path))
