"""A real Ray cluster of three nodes on this machine: the contract, and whole runs over it."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from tests.contracts import cluster as suite
from tests.hardware.clusters.nodes import OTHERS, Nodes

from gyre.cluster.fork_client import ForkClient, ForkClients
from gyre.cluster.registry import open_cluster
from gyre.config.run_config import ClusterConfig
from gyre.types.errors import ConfigError
from gyre.types.protocols import LOST

# Ray and what it needs warn of what is none of ours.
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]

LATE = "127.0.0.4"


@pytest.fixture(scope="module")
def nodes():
    made = Nodes()
    yield made
    made.close()


class Ray:
    def __init__(self, nodes, folder, **section):
        self.folder = folder
        self._section = ClusterConfig(kind="ray", address=nodes.address, **section)

    @asynccontextmanager
    async def opened(self):
        cluster = await open_cluster(
            self._section, run="run", folder=self.folder, key_file=self.folder / "key"
        )
        try:
            yield cluster
        finally:
            await cluster.close()


def run(work):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(work, 120))


@pytest.mark.parametrize("promise", suite.PROMISES, ids=lambda promise: promise.__name__)
def test_ray_keeps_the_contract(promise, nodes, tmp_path):
    nodes.revived()
    run(promise(Ray(nodes, tmp_path)))


def test_a_cell_has_a_node_of_its_own_where_each_has_room_for_one(nodes, tmp_path):
    async def work():
        async with Ray(nodes, tmp_path, cell_cpus=2.0).opened() as cluster:
            spots = await asyncio.gather(*(cluster.cell(one) for one in (0, 1)))
            agents = [await cluster.agents() for _ in range(3)]
            return {spot.host for spot in spots}, {spot.host for spot in agents}, cluster.here.host

    nodes.revived()
    assert (set(OTHERS), {nodes.head, *OTHERS}, nodes.head) == run(work())


def test_a_cell_that_fits_on_no_node_is_refused_with_what_there_is(nodes, tmp_path):
    async def work():
        async with Ray(nodes, tmp_path, cell_cpus=64.0, place_s=1.0).opened() as cluster:
            await cluster.cell(0)

    with pytest.raises(ConfigError, match=r"cell 0: no node has CPU 64 free within 1 s"):
        run(work())


def test_a_node_that_does_not_see_the_folder_is_refused(nodes, tmp_path):
    async def work():
        async with Ray(nodes, tmp_path, agents="beside").opened() as cluster:
            (tmp_path / "cluster.seen").unlink()
            await cluster.cell(0)

    with pytest.raises(ConfigError, match=r"node 127.0.0.\d: does not see .*all nodes share"):
        run(work())


def test_where_nothing_starts_on_any_node_it_is_said_why(nodes, tmp_path, monkeypatch, caplog):
    from gyre.cluster import ray

    monkeypatch.setattr(ray, "START_S", 0.0)

    async def work():
        async with Ray(nodes, tmp_path).opened() as cluster:
            await cluster.agents()

    nodes.revived()
    with pytest.raises(ConfigError, match=r"no node is there .*\n  node .*: nothing starts there"):
        run(work())
    assert 1 + len(OTHERS) == sum("nothing starts there" in one for one in caplog.messages)


def test_a_node_that_takes_its_time_holds_up_no_execution_of_others(nodes, tmp_path, monkeypatch):
    from gyre.cluster import ray

    monkeypatch.setattr(ray, "LIST_S", 0.0)

    async def work():
        async with Ray(nodes, tmp_path).opened() as cluster:
            nodes.add(LATE)
            nodes.freeze(LATE)
            async with asyncio.timeout(ray.START_S / 10):
                return {(await cluster.agents()).host for _ in range(2 * len(OTHERS))}

    nodes.revived()
    try:
        assert {nodes.head, *OTHERS} == run(work())
    finally:
        nodes.kill(LATE)


def test_how_the_cluster_knows_its_clients_must_be_said(nodes, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE")

    with pytest.raises(ConfigError, match="expects RAY_AUTH_MODE in the environment"):
        run(
            open_cluster(
                ClusterConfig(kind="ray"), run="run", folder=tmp_path, key_file=tmp_path / "key"
            )
        )


def test_what_ran_on_a_node_that_dies_is_lost_and_its_cell_gets_another(nodes, tmp_path):
    async def work():
        async with Ray(nodes, tmp_path).opened() as cluster:
            spot = await cluster.cell(0)
            process = await spot.spawn(("-c", suite.SLEEP), log=str(tmp_path / "log"))
            assert "up" == await suite.first_line(process)
            await asyncio.to_thread(nodes.kill, spot.host)
            status = await process.wait()
            await suite.until(lambda: spot.is_lost)
            again = await cluster.cell(0)
            other = await again.spawn(("-c", "print('there')"), log=str(tmp_path / "log"))
            return status, spot.host, again.host, await suite.first_line(other)

    nodes.revived()
    status, before, after, said = run(work())

    assert (LOST, "there") == (status, said)
    assert before != after


def test_only_what_lasts_outlives_the_cluster_that_started_it(nodes, tmp_path):
    async def work():
        async with Ray(nodes, tmp_path).opened() as cluster:
            fork_clients = ForkClients(
                "tests.cluster.support.forked", cluster, tmp_path / "nursery.log"
            )
            fork_client: ForkClient = await fork_clients.at(await cluster.agents())
            lasting, other = [
                await fork_client.fork("x", ["serve"], log=tmp_path / "log", outlives_parent=lasts)
                for lasts in (True, False)
            ]
            await other.ready(suite.PATIENCE_S)
            return lasting.pid, other.pid

    nodes.revived()
    lasting, other = run(work())

    try:
        run(suite.until(lambda: not suite.is_alive(other)))
        assert suite.is_alive(lasting)
    finally:
        with suppress(ProcessLookupError):
            os.kill(lasting, signal.SIGKILL)
    assert Path(tmp_path / "nursery.log").exists()
