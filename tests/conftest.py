"""What holds for every test: threads, signals, how hard properties are tried, no unseen skip."""

import gc
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from tests.isolation import Isolation

# Before torch is imported: tests run beside each other, and their matrices are small, so that
# threads would only wait for each other. It holds for every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs begin without it, and what tests start must be interruptible.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
DURATIONS: dict[str, dict[str, float]] = json.loads((TESTS / "durations.json").read_text())
"""Seconds of files, and of tests that are long, as scripts/durations wrote them."""
SLOW_S = 0.2
"""A test that takes longer is slow, whatever it does."""

ALLOWED_SKIPS: dict[str, str] = {}
"""Node id of a test that may be skipped, and the reason; any other skip is a failure."""

# The same examples every time, so that no run fails by chance; `make explore` looks for new ones.
# A busy machine makes generation slow without making a property false, hence no deadline.
settings.register_profile(
    "default",
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=tuple(Phase),
    print_blob=False,
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=25)
settings.register_profile(
    "nightly",
    settings.get_profile("default"),
    max_examples=1500,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(TESTS.parent / ".hypothesis" / "examples"),
    print_blob=True,
)
# Whatever Hypothesis thinks of the machine it is on.
settings.load_profile("default")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Isolation())
    if settings.default.derandomize:
        # Hypothesis draws numbers and texts from the sources of what is imported, and what is
        # imported depends on which tests a worker has run before.
        providers._get_local_constants = Constants


RULES = ("architecture", "docs/test_pages.py", "docs/test_reference.py")
"""What every change is held to is in `make check`, however long it once took."""
MARKED_FOLDERS = {"browser": "slow", "flows": "slow", "harness": "harness"}
"""Folders whose tests start whole processes, and the marker that all of them bear."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder, marker in MARKED_FOLDERS.items():
            if item.path.is_relative_to(TESTS / folder):
                item.add_marker(marker)
        is_rule = any(item.path.is_relative_to(TESTS / one) for one in RULES)
        seconds = DURATIONS["tests"].get(f"{_file(item)}::{_function(item)}", 0.0)
        if seconds >= SLOW_S and not is_rule:
            item.add_marker("slow")
    # Files that take long come first, so that several workers end at about the same time.
    slow = {
        _file(item)
        for item in items
        if any(item.get_closest_marker(marker) for marker in MARKED_FOLDERS.values())
    }
    of_files = dict.fromkeys(slow, SLOW_S) | DURATIONS["files"]
    items.sort(key=lambda item: -of_files.get(_file(item), 0.0))


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""


def _function(item: pytest.Item) -> str:
    """Its name without parameters."""
    return getattr(item, "originalname", item.name)


def pytest_collection_finish() -> None:
    # What has been imported for all tests stays, so that no search for garbage goes through it.
    gc.collect()
    gc.freeze()


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as skipped too, with `wasxfail` set.
    if not report.skipped or hasattr(report, "wasxfail") or report.nodeid in ALLOWED_SKIPS:
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: skipped and not in ALLOWED_SKIPS: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
