"""What holds for every test: threads, signals, how hard properties are tried, no unseen skip."""

import gc
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

TESTS = Path(__file__).parent
LONGEST = (
    "harness/test_transitions.py",
    "chaos_sim/test_seeds.py",
    "flows/test_train.py",
    "flows/test_learning.py",
    "flows/test_rollout.py",
    "docs/test_tutorial.py",
    "harness/test_compaction.py",
    "run/test_ranked.py",
    "browser/test_access.py",
    "theory/test_paper_table.py",
    "chaos_sim/test_planted.py",
    "flows/test_engine_loss.py",
    "backends/tasks/test_shipped.py",
    "flows/test_serve.py",
    "browser/test_live.py",
    "flows/test_resume.py",
    "chaos/test_soak.py",
    "harness/test_tool_use.py",
    "harness/test_faults.py",
    "chaos/test_engines.py",
    "harness/test_sub_agents.py",
    "docs/test_quickstart.py",
    "flows/test_repair.py",
    "cli/test_serve.py",
    "proxy/session/test_oracle.py",
    "flows/test_restart.py",
    "flows/test_many.py",
    "engine/test_loop.py",
    "sim/test_world.py",
    "contracts/test_engines.py",
    "harness/test_restart.py",
    "harness/test_supervised.py",
    "benchmarks/test_agree.py",
    "contracts/test_steered.py",
    "watch/test_report.py",
)
"""Files that were measured to take longest, with the longest first."""

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
            if item.path.is_relative_to(TESTS / folder):
                item.add_marker(marker)
    # Files that take long come first, so that several workers end at about the same time.
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    slow = {
        item.path
        for item in items
        if any(item.get_closest_marker(marker) for marker in MARKED_FOLDERS.values())
    }
    last = len(places)
    items.sort(key=lambda item: places.get(item.path, last if item.path in slow else last + 1))


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
