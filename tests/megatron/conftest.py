"""Megatron runs with -m megatron only; a run in which every promise is kept is written down."""

import os
from collections.abc import Generator
from typing import Any

import pytest
import torch
from tests.megatron import result

PROMISED = pytest.StashKey[set[str]]()
"""Every test there is for the device of this run, selected or not."""
KEPT = pytest.StashKey[dict[str, float]]()
"""Of each test that passed: the seconds it took."""
FOUND = pytest.StashKey[dict[str, Any]]()
"""Numbers that tests have noted."""
LOAD = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--commit", help="of the sources, where there is no repository to ask")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROMISED] = set()
    config.stash[KEPT] = {}
    config.stash[FOUND] = {}
    config.stash[LOAD] = os.getloadavg()[0]


def wants_gpu(config: pytest.Config) -> bool:
    return "not gpu" not in config.option.markexpr


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        needs_gpu = item.get_closest_marker("gpu") is not None
        if item.get_closest_marker("megatron") is not None and needs_gpu == wants_gpu(config):
            config.stash[PROMISED].add(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed and item.nodeid in item.config.stash[PROMISED]:
        item.config.stash[KEPT][item.nodeid] = report.duration
    return report


@pytest.fixture
def note(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test puts there is in the result."""
    found: dict[str, Any] = request.config.stash[FOUND]
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A result is of all promises or is none."""
    config = session.config
    kept = config.stash[KEPT]
    if kept and config.stash[PROMISED] == set(kept):
        on_cuda = wants_gpu(config)
        result.write(
            kept,
            (config.stash[LOAD], os.getloadavg()[0]),
            device="cuda" if on_cuda else "cpu",
            accelerator=torch.cuda.get_device_name() if on_cuda else None,
            commit=config.getoption("--commit", default=None),
            found=config.stash[FOUND],
        )
