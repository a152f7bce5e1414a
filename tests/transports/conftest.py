"""Mooncake runs with -m transports only; a run in which every promise is kept is written down."""

import pytest
from tests.promises import Promises
from tests.transports import result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Promises("transports", result.write))
