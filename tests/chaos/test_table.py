"""The table of faults in docs/faults.md has every fault, and names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_FAULTS = 43
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows():
    """By number the cells of each fault."""
    page = (ROOT / "docs" / "faults.md").read_text()
    return [(int(number), cells) for number, *cells in ROW.findall(page)]


def named_in(path):
    if not path.is_file():
        return set()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {one.name for one in ast.parse(path.read_text()).body if isinstance(one, kinds)}


def test_every_fault_has_its_line():
    assert list(range(1, NUM_FAULTS + 1)) == [number for number, _ in rows()]


@pytest.mark.parametrize(("number", "cells"), rows(), ids=lambda one: str(one)[:2])
def test_every_test_that_a_line_names_exists(number, cells):
    named = TEST.findall(cells[-1])

    assert named, f"fault {number} is shown by nothing"
    assert cells[-1] == "<br>".join(f"`{path}::{name}`" for path, name in named)
    assert [] == [one for one in named if one[1] not in named_in(ROOT / "tests" / one[0])]


def test_every_invariant_that_a_line_names_is_described():
    page = (ROOT / "docs" / "faults.md").read_text()
    described = set(re.findall(r"^\| (I\d+) \|", page, re.MULTILINE))
    named = {one for _, cells in rows() for one in re.findall(r"\bI\d+\b", cells[1])}

    assert {f"I{number}" for number in range(1, 11)} == described
    assert named <= described


def test_every_fault_that_a_test_cites_is_in_the_table():
    cited = {
        int(number)
        for path in (ROOT / "tests").rglob("*.py")
        for group in re.findall(r"FAULTS (\d+(?:(?:, | and )\d+)*)", path.read_text())
        for number in re.findall(r"\d+", group)
    }

    assert cited <= set(range(1, NUM_FAULTS + 1))
