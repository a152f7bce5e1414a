"""Real nodes run with -m cluster only; a run in which every promise is kept is written down."""

import os
import signal
from collections.abc import Iterator

import pytest
from tests.hand_run_results import Promises
from tests.hardware.clusters import result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Promises("cluster", result.write))


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray's driver takes over a signal and a variable of its process, and gives neither back."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("PYTHONBREAKPOINT", os.environ.get("PYTHONBREAKPOINT", ""))
    yield
    signal.signal(signal.SIGTERM, before)
