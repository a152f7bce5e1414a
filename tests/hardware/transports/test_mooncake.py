"""The transport contract, kept by the real Transfer Engine of Mooncake over TCP on this machine."""

import sys
import time

import pytest
from tests.contracts import transport as suite
from tests.hardware.transports.subjects import HOST, Subject

from gyre.config.sections import TransportConfig
from gyre.transports.registry import open_transport
from gyre.types.errors import ConfigError, TransferError

SOON_S = 20.0
"""Within which a read of a dead peer has failed; its own time-outs are minutes."""


@pytest.mark.transports
@pytest.mark.parametrize("promise", suite.EVERY_TRANSPORT, ids=lambda promise: promise.__name__)
def test_mooncake_keeps_the_promise_that(promise, tmp_path):
    promise(Subject("mooncake", tmp_path))


@pytest.mark.transports
def test_memory_that_is_withdrawn_serves_for_what_follows(tmp_path):
    """It is never given back, because somebody may be reading it."""
    with Subject("mooncake", tmp_path).open("owner") as owner:
        first = suite.exposed(owner, bytes(100_000))
        owner.withdraw(first)
        second = suite.exposed(owner, bytes(90_000))
        third = suite.exposed(owner, bytes(90_000))

    assert first.at == second.at != third.at


@pytest.mark.transports
def test_a_peer_that_dies_is_noticed_soon(tmp_path):
    subject = Subject("mooncake", tmp_path)
    with subject.elsewhere(suite.LARGE, 1) as peer, subject.open("reader") as reader:
        suite.read(reader, peer.exposure, 0, 10)
        peer.kill()
        began = time.monotonic()
        with pytest.raises(TransferError):
            suite.read(reader, peer.exposure)

        assert time.monotonic() - began < SOON_S


def test_without_mooncake_the_run_file_is_refused_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("MC_LOG_LEVEL", "ERROR")
    for name in ("mooncake", "mooncake.engine"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "gyre.transports.mooncake", raising=False)
    section = TransportConfig(kind="mooncake")

    with pytest.raises(ConfigError, match=r"pip install 'gyre-rl\[mooncake\]'"):
        open_transport(section, owner="cell-0", host=HOST, share=tmp_path)
