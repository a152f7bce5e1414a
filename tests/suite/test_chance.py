"""Property tests try the same examples every time, and `make explore` tries others."""

import ast
import os
import shutil
import subprocess
import sys

import pytest

RECORDS = """
from pathlib import Path

import sometimes
from hypothesis import given, settings, strategies as st

seen = []

@settings(max_examples=100)
@given(st.integers() | st.floats(0, 1e9) | st.text() | st.sampled_from("abc"))
def test_records(value):
    seen.append(repr(value))

def test_writes():
    Path("seen").write_text("\\n".join(seen))
"""
FAILS = """
from hypothesis import given, strategies as st

def test_is_small():
    @given(st.integers())
    def is_small(number):
        assert number < 1000

    is_small()
"""


def folder_with(root, folder, source):
    """A folder of one test, under the conftest of all."""
    folder.mkdir(parents=True)
    for name in ("conftest.py", "durations.json"):
        shutil.copy(root / "tests" / name, folder)
    (folder / "test_one.py").write_text(source)
    return folder


def run(root, command, folder, **env):
    paths = os.pathsep.join([str(root), str(folder.parent)])
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths} | env,
        capture_output=True,
        text=True,
    )


def test_examples_are_the_same_whatever_is_imported_and_wherever_it_runs(root, tmp_path):
    there = folder_with(root, tmp_path / "tests", RECORDS)
    # Elsewhere, because what is in a folder of tests is not looked at.
    (tmp_path / "sometimes").mkdir()
    found = []
    for number in range(2):
        constants = "\n".join(f"x{n} = {n * 7919 + number}, 'text {n} {number}'" for n in range(99))
        (tmp_path / "sometimes" / "__init__.py").write_text(constants)
        env = {"PYTHONHASHSEED": str(number), "CI": ["true", ""][number]}
        done = run(root, ["pytest", "-q", "-p", "no:cacheprovider", "."], there, **env)
        assert 0 == done.returncode, done.stdout
        found.append((there / "seen").read_text())

    assert found[0] == found[1]
    assert 100 == len(found[0].splitlines())


@pytest.mark.slow
def test_exploring_tells_what_fails(root, tmp_path):
    there = folder_with(root, tmp_path / "tests", FAILS)
    done = run(root, ["tests.explore", "0.001", str(there)], root)

    assert 1 == done.returncode, done.stderr
    assert "test_one.py::test_is_small" in done.stdout
    assert "number=1000" in done.stdout
    assert list((tmp_path / ".hypothesis" / "examples").iterdir())


FIXED = {"derandomize": True, "database": None, "deadline": None}
"""Where a test says one of these for itself, it says what holds for all."""


def test_no_test_has_a_chance_of_its_own(root):
    chances = [
        f"{path.relative_to(root)}:{node.lineno}: {name}"
        for path in (root / "tests").rglob("test_*.py")
        for text in [path.read_text()]
        if any(name in text for name in FIXED)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "settings"
        for keyword in node.keywords
        if (name := keyword.arg) in FIXED and ast.unparse(keyword.value) != str(FIXED[name])
    ]

    assert [] == chances
