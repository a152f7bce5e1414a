"""Real nodes run with -m cluster only; a run in which every promise is kept is written down."""

import pytest
from tests.hand_run_results import Promises
from tests.hardware.clusters import result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Promises("cluster", result.write))
