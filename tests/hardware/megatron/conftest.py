"""Megatron runs with -m megatron only; a run in which every promise is kept is written down."""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hand_run_results import Promises
from tests.hardware.megatron import result

FOUND = pytest.StashKey[dict[str, Any]]()
"""Numbers that tests have noted."""


class OfDevice(Promises):
    """Of the tests those for the device of this run."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__("megatron", partial(write, config))
        self._wants_gpu = wants_gpu(config)

    def is_ours(self, item: pytest.Item) -> bool:
        needs_gpu = item.get_closest_marker("gpu") is not None
        return super().is_ours(item) and needs_gpu == self._wants_gpu

    def _folders(self) -> set[Path]:
        """On a GPU the one file that needs it is all there is."""
        return set() if self._wants_gpu else super()._folders()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--commit", help="of the sources, where there is no repository to ask")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND] = {}
    config.pluginmanager.register(OfDevice(config))


def wants_gpu(config: pytest.Config) -> bool:
    return "not gpu" not in config.option.markexpr


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group takes over errors of its process; a deterministic trainer sets a variable."""
    before = sys.excepthook
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    sys.excepthook = before


@pytest.fixture
def note(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test puts there is in the result."""
    found: dict[str, Any] = request.config.stash[FOUND]
    return found


def write(
    config: pytest.Config, seconds: Mapping[str, float], load_average: tuple[float, float]
) -> None:
    on_cuda = wants_gpu(config)
    result.write(
        seconds,
        load_average,
        device="cuda" if on_cuda else "cpu",
        accelerator=torch.cuda.get_device_name() if on_cuda else None,
        commit=config.getoption("--commit", default=None),
        found=config.stash[FOUND],
    )
