"""What holds for every test: threads, signals, how hard properties are tried, no unseen skip."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# Before torch is imported: tests run beside each other, and their matrices are small, so that
# threads would only wait for each other. It holds for every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs begin without it, and what tests start must be interruptible.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ALLOWED_SKIPS: dict[str, str] = {}
"""Node id of a test that may be skipped, and the reason; any other skip is a failure."""

# A busy machine makes generation slow without making a property false, hence no deadline.
settings.register_profile(
    "default",
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=25)
settings.register_profile("nightly", settings.get_profile("default"), max_examples=1500)
settings.register_profile(
    "ci",
    settings.get_profile("default"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


MARKED_FOLDERS = {"browser": "slow", "flows": "slow", "harness": "harness"}
"""Folders whose tests start whole processes, and the marker that all of them bear."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder, marker in MARKED_FOLDERS.items():
            if item.path.is_relative_to(Path(__file__).parent / folder):
                item.add_marker(marker)
    # Files that take long come first, so that several workers end at about the same time.
    long = {
        item.path
        for item in items
        if any(item.get_closest_marker(marker) for marker in MARKED_FOLDERS.values())
    }
    items.sort(key=lambda item: item.path not in long)


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
