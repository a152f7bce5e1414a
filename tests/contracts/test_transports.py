"""The transport contract, kept by files and by sockets; Mooncake is asked in tests/hardware."""

import pytest
from tests.contracts import transport as suite
from tests.hardware.transports.subjects import Subject


@pytest.mark.parametrize("promise", suite.EVERY_TRANSPORT, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", ["shared", "tcp"])
def test_a_transport_keeps_the_promise_that(kind, promise, tmp_path):
    promise(Subject(kind, tmp_path))
