"""How long tests take is known of tests that exist, and what takes long is not in `make check`."""

import ast
import re
import tomllib

from tests.conftest import DURATIONS, TESTS

MEND = "scripts/durations without a report drops what is not there any more"


def test_measured_files_are_there():
    assert [] == [name for name in DURATIONS["files"] if not (TESTS / name).is_file()], MEND


def test_measured_tests_are_there():
    files = {name.partition("::")[0] for name in DURATIONS["tests"]}
    there = {
        f"{file}::{one.name}"
        for file in files
        if (TESTS / file).is_file()
        for one in ast.parse((TESTS / file).read_text()).body
        if isinstance(one, ast.FunctionDef)
    }

    assert [] == sorted(set(DURATIONS["tests"]) - there), MEND


def test_the_quick_tests_leave_out_every_marker(root):
    """Those that are run by hand, and those that take long."""
    options = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in options["markers"]}
    (expression,) = re.findall('-m "(.+?)"', (root / "scripts" / "check").read_text())

    assert sorted(markers) == sorted(expression.removeprefix("not ").split(" and not "))


def test_all_tests_leave_out_what_is_run_by_hand(root):
    """Chaos leaves itself out, in its conftest, so that `make chaos` need not name the others."""
    options = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    by_hand = {
        line.partition(":")[0]
        for line in options["markers"]
        if "run by hand" in line or "unless asked for" in line
    }
    expression = options["addopts"][options["addopts"].index("-m") + 1]

    assert by_hand - {"chaos"} == set(expression.removeprefix("not ").split(" and not "))
