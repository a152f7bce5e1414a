"""Mooncake runs with -m transports only; a run in which every promise is kept is written down."""

import os
from collections.abc import Generator
from typing import Any

import pytest
from tests.transports import result

PROMISED = pytest.StashKey[set[str]]()
"""Every test of Mooncake there is, selected or not."""
KEPT = pytest.StashKey[dict[str, float]]()
"""Of each test that passed: the seconds it took."""
LOAD = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROMISED] = set()
    config.stash[KEPT] = {}
    config.stash[LOAD] = os.getloadavg()[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = (item for item in items if item.get_closest_marker("transports") is not None)
    config.stash[PROMISED] |= {item.nodeid for item in ours}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed and item.nodeid in item.config.stash[PROMISED]:
        item.config.stash[KEPT][item.nodeid] = report.duration
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A result is of all promises or is none."""
    kept = session.config.stash[KEPT]
    if kept and session.config.stash[PROMISED] == set(kept):
        result.write(kept, (session.config.stash[LOAD], os.getloadavg()[0]))
