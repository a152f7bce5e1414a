"""The cluster contract, kept by this machine; real Ray is asked in tests/hardware/clusters."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.contracts import cluster as suite

from gyre.cluster.registry import open_cluster
from gyre.config.run_config import ClusterConfig
from gyre.types.errors import ConfigError

pytestmark = pytest.mark.slow


class Machine:
    def __init__(self, folder):
        self.folder = folder

    @asynccontextmanager
    async def opened(self):
        cluster = await open_cluster(
            ClusterConfig(), run="run", folder=self.folder, key_file=self.folder / "key"
        )
        yield cluster
        await cluster.close()


@pytest.mark.parametrize("promise", suite.PROMISES, ids=lambda promise: promise.__name__)
def test_this_machine_keeps_the_contract(promise, tmp_path):
    # The loop of a real controller, which starts processes in a way of its own.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(promise(Machine(tmp_path)))


def test_a_cluster_whose_library_is_not_there_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    opening = open_cluster(
        ClusterConfig(kind="ray"), run="run", folder=tmp_path, key_file=tmp_path / "key"
    )

    with pytest.raises(ConfigError, match=r"pip install 'gyre-rl\[ray\]'"):
        asyncio.run(opening)


def test_an_address_for_clients_of_a_cluster_is_refused(tmp_path):
    section = ClusterConfig(kind="ray", address="ray://head:10001")
    opening = open_cluster(section, run="run", folder=tmp_path, key_file=tmp_path / "key")

    with pytest.raises(ConfigError, match=r"ray://head:10001: expected auto, or HOST:PORT"):
        asyncio.run(opening)
