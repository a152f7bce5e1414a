"""The page on tasks agrees with the readers and with the tasks that come with Gyre."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from gyre.config.run_config import TasksConfig
from gyre.tasks.harbor import HarborTasks, TrainingTable

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text()
TASKS = ROOT / "examples" / "tasks"


def rows(heading):
    """Cells of the first table behind a line of the page."""
    lines = PAGE.split(heading, 1)[1].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def test_every_kind_of_source_is_described_with_its_keys():
    known = {
        get_args(kind.__dataclass_fields__["kind"].type)[0]: [
            one.name for one in fields(kind) if one.name != "kind"
        ]
        for kind in get_args(TasksConfig)
    }

    assert known == {
        kind.strip("`"): re.findall(r"`(\w+)`", keys) for kind, _, keys in rows("# Tasks")
    }


def test_every_word_of_ours_is_described():
    assert [one.name for one in fields(TrainingTable)] == [
        row[0].strip("`") for row in rows("### Our own words")
    ]


def test_every_task_that_comes_along_is_listed():
    source = HarborTasks(TASKS)
    found: dict[str, list[str]] = {}
    for task in (source.get(index) for index in range(len(source))):
        found.setdefault(task.metadata["level"], []).append(task.id.removeprefix("gyre/"))

    assert found == {
        level: re.findall(r"`([\w-]+)`", names)
        for level, names in rows("## The tasks that come with Gyre")
    }
