"""Try the property tests on random examples, again and again, until the time is over.

Each round runs every property test, in an order of its own, with 1,500 fresh examples; a test that
is under way when the time is over is finished. What fails is kept in .hypothesis and tried first
in later rounds, and told at the end; then the exit status is 1. A failing example is added to its
test as an `@example`, and its cause mended.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

ROOT = Path(__file__).parent.parent
NEEDS_MORE = ("gpu", "engines", "cluster", "transports", "together", "megatron", "chaos")
"""Tests that bear one of these need what may not be here."""
MARKED = " and ".join(["hypothesis", *(f"not {one}" for one in NEEDS_MORE)])
FAILED = int(pytest.ExitCode.TESTS_FAILED)


class Round:
    """A plug-in: property tests in random order until the time is over; failures into a file."""

    def __init__(self, until: float, failures: Path) -> None:
        self._until = until
        self._failures = failures

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        for item in items:
            # Hypothesis marks what it wraps, but not what has a property within.
            if isinstance(item, pytest.Function) and _has_property(item.function):
                item.add_marker("hypothesis")
        yield
        random.shuffle(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._failures.open("a") as file:
                file.write(f"\n{report.nodeid} ({report.when})\n{report.longreprtext}\n")
                file.writelines(f"{text}\n" for _, text in report.sections)

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if time.time() > self._until:
            item.session.shouldstop = "the time is over"


def _has_property(function: FunctionType) -> bool:
    # Pytest wants to import Hypothesis itself, hence by name.
    given = getattr(function.__globals__.get("given"), "__module__", "")
    return given.startswith("hypothesis.") and "given" in _names(function.__code__)


def _names(code: CodeType) -> set[str]:
    """Globals that it uses, and those that functions within it use."""
    within = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*within)


def run_round(until: float, failures: Path, files: list[str]) -> int:
    """One round in this process; the exit status of pytest."""
    arguments = ["-v", "-p", "no:xdist", "-m", MARKED, "--hypothesis-profile=nightly"]
    return int(pytest.main([*arguments, *files], plugins=[Round(until, failures)]))


def explore(minutes: float, files: list[str]) -> int:
    """Rounds, each in a process of its own; 1 if an example failed."""
    until = time.time() + minutes * 60
    rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        failures = Path(folder, "failures.txt")
        failures.touch()
        while rounds == 0 or time.time() < until:
            rounds += 1
            print(f"round {rounds}", flush=True)
            one = [sys.executable, "-m", "tests.explore", "--round", str(until), str(failures)]
            status = subprocess.run([*one, *files], cwd=ROOT, check=False).returncode
            if status not in (0, FAILED, int(pytest.ExitCode.INTERRUPTED)):
                return status
        told = failures.read_text()
    print(f"{rounds} rounds in {minutes:g} minutes: {told or 'no failure'}")
    return 1 if told else 0


def main() -> int:
    if sys.argv[1:2] == ["--round"]:
        return run_round(float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("minutes", nargs="?", type=float, default=60.0, help="60 unless told")
    parser.add_argument("files", nargs="*", help="all of tests unless told")
    given = parser.parse_args()
    return explore(given.minutes, given.files)


if __name__ == "__main__":
    sys.exit(main())
