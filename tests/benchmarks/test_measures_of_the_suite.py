"""What pytest and coverage said becomes a sample, by package and by failure."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import line_coverage, soak_tests

LOG = """
FAILED tests/a/test_one.py::test_a[x] - AssertionError: no
ERROR tests/b/test_two.py::test_b - LeftOpen
=========== short test summary info ============
1 failed, 8479 passed, 1 error in 635.87s (0:10:35)
"""


def ran(files: dict[str, tuple[int, int]], folder: Path) -> dict[str, Any]:
    """What a folder of one measurement comes to: covered and all lines by file."""
    found = {
        f"/clone/src/gyre/{name}": {"summary": {"covered_lines": ran, "num_statements": lines}}
        for name, (ran, lines) in files.items()
    }
    (folder / "coverage.json").write_text(json.dumps({"files": found}))
    (folder / "log").write_text(LOG)
    return line_coverage.summary(folder)


def test_lines_are_counted_by_package(tmp_path: Path) -> None:
    found = ran({"cell/api.py": (3, 4), "cell/ranks/main.py": (1, 1), "aio.py": (0, 5)}, tmp_path)

    assert {"aio": [0, 5], "cell": [4, 5]} == found["by_package"]
    assert (4, 10, 40.0) == (found["covered"], found["statements"], found["percent"])
    assert "1 failed, 8479 passed, 1 error" == found["tests"]


def test_a_run_of_the_suite_keeps_its_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository whose `make test` says what pytest says."""
    said = tmp_path / "repository" / "said"
    said.parent.mkdir()
    said.write_text(LOG)
    (said.parent / "Makefile").write_text("test:\n\t@cat said; exit 1\n")
    git = ["git", "-C", str(said.parent), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(soak_tests, "ROOT", said.parent)
    monkeypatch.setattr(soak_tests, "LOGS", tmp_path / "logs")

    found = soak_tests.run(1, "HEAD", loops=0)

    assert ["tests/a/test_one.py::test_a[x]", "tests/b/test_two.py::test_b"] == found["failures"]
    assert "1 failed, 8479 passed, 1 error" == found["counts"]
    assert (0, 2) == (found["busy_loops"], found["exit_status"])
    (said.parent / "Makefile").unlink()
    assert found == soak_tests.run(1, "HEAD", loops=0)
