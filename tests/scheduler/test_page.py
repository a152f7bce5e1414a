"""docs/scheduler.md speaks of the states, rules and messages that there are."""

import ast
import re
from pathlib import Path
from typing import get_args

from gyre.scheduler import policies
from gyre.scheduler.cells import CellState
from gyre.scheduler.groups import Phase
from gyre.scheduler.messages import Command, Event

PAGE = (Path(__file__).parents[2] / "docs" / "scheduler.md").read_text()
TRANSITIONS = re.findall(r"^\| from \| to \| when \|\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)


def states(table):
    """What the first two columns name."""
    return {name for row in table.splitlines() for name in row.split(" | ")[:2]}


def test_the_tables_of_transitions_have_every_state():
    shown = [{name.strip("| ") for name in states(one)} for one in TRANSITIONS]

    assert [
        {state.value for state in CellState},
        {phase.value for phase in Phase} | {"the end of the run"},
    ] == shown


def test_every_rule_is_explained():
    tree = ast.parse(Path(policies.__file__).read_text())
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split("## The rules")[1], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert there <= named


def test_every_command_is_listed_with_an_answer():
    table = PAGE.split("| command | its answer |")[1].split("\n\n")[0]
    commands = {one.__name__ for one in get_args(Command)}
    events = {one.__name__ for one in get_args(Event)}
    rows = [line.split("|")[1:3] for line in table.splitlines() if "`" in line]

    assert commands == {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[1])} <= events
