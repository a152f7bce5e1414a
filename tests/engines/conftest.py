"""Real engines run with -m engines only; a run in which every promise is kept is written down."""

import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Before the modules below, because neither this folder nor the benchmarks are installed.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from real import installed, result

PROMISED = pytest.StashKey[set[str]]()
"""Every test of real engines there is, selected or not."""
KEPT = pytest.StashKey[dict[str, "dict[str, Any]"]]()
"""Of each test that passed: its engine, and the numbers it recorded."""
LOAD = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROMISED] = set()
    config.stash[KEPT] = {}
    config.stash[LOAD] = os.getloadavg()[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = (item for item in items if item.get_closest_marker("engines") is not None)
    config.stash[PROMISED] |= {item.nodeid for item in ours}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed and item.nodeid in item.config.stash[PROMISED]:
        about = dict(report.user_properties)
        item.config.stash[KEPT][item.nodeid] = {"promise": item.originalname, **about}
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A result is of all promises or is none."""
    kept = session.config.stash[KEPT]
    if not kept or session.config.stash[PROMISED] != set(kept):
        return
    samples: dict[str, dict[str, Any]] = defaultdict(lambda: {"promises": []})
    for about in kept.values():
        found = samples[about.pop("engine")]
        found["promises"].append(about.pop("promise"))
        found.update(about)
    python = {name: (installed.python(name), _distributions(name)) for name in samples}
    result.write(samples, result.versions(python), (session.config.stash[LOAD], os.getloadavg()[0]))


def _distributions(engine: str) -> list[str]:
    return [installed.installer().ENGINES[engine], "torch", "transformers"]
