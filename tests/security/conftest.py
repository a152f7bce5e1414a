"""A real proxy before a scripted engine, one for all tests of a module."""

from contextlib import ExitStack

import pytest
from tests.flows.conftest import Stage


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    with ExitStack() as stack:
        yield Stage(tmp_path_factory.mktemp("stage"), stack)
