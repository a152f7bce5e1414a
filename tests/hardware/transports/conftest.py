"""Mooncake runs with -m transports only; a run in which every promise is kept is written down."""

import pytest
from tests.hand_run_results import Promises
from tests.hardware.transports import result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Promises("transports", result.write))
