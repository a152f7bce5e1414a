"""Several shards as one: what they say is added up, and one that is away holds nobody up."""

import asyncio

import pytest

from gyre.proxy import client
from gyre.proxy.client import SealedExecution, ShardedProxyClient
from gyre.types.ids import shard_of


class Shard:
    """A shard that answers what it was made with."""

    def __init__(self, *, held, work, counts, url="http://nowhere"):
        self.url = url
        self.asked = []
        self.is_away = False
        self._held, self._work, self._counts = held, work, counts

    async def open(self, execution):
        self.asked.append(execution)
        return f"key of {execution}"

    async def seal(self, execution):
        return SealedExecution(committed_calls=len(self.asked), held_s=0.0)

    def url_of(self, execution):
        return f"{self.url}/{execution}"

    async def held(self):
        if self.is_away:
            await asyncio.Event().wait()
        return self._held

    async def work_of_engines(self):
        return self._work

    async def wait_drained(self, engine):
        return self._counts


@pytest.fixture
def shards():
    return [
        Shard(
            held={"two": 1.0},
            work={"e": (1, 10)},
            counts={"moved": 2, "failures": {"hang": 1}},
            url="http://first",
        ),
        Shard(
            held={"one": 2.0},
            work={"e": (2, 20), "f": (0, 5)},
            counts={"moved": 3},
            url="http://second",
        ),
    ]


def test_an_execution_is_always_the_same_shards(shards):
    proxies = ShardedProxyClient(shards)

    assert "key of one" == asyncio.run(proxies.open("one"))
    assert ([], ["one"]) == (shards[0].asked, shards[1].asked)
    assert 1 == asyncio.run(proxies.seal("one")).committed_calls
    assert "http://second/one" == proxies.url_of("one")
    assert "http://first/two" == proxies.url_of("two")


def test_what_they_count_is_added_up(shards):
    proxies = ShardedProxyClient(shards)

    assert {"two": 1.0, "one": 2.0} == asyncio.run(proxies.held())
    assert {"e": (3, 30), "f": (0, 5)} == asyncio.run(proxies.work_of_engines())
    assert {"moved": 5} == asyncio.run(proxies.wait_drained("e"))


def test_waiting_calls_of_the_others_are_known_while_one_is_away(shards, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.0)
    shards[0].is_away = True

    assert {"one": 2.0} == asyncio.run(ShardedProxyClient(shards).held())


@pytest.mark.parametrize("shards", [2, 3, 8, 64])
def test_executions_of_a_run_are_spread_evenly(shards):
    """Named as a run names them."""
    names = [f"g{group:05d}-{member:02d}" for group in range(512) for member in range(8)]
    counts = [0] * shards
    for name in names:
        counts[shard_of(name, shards)] += 1

    assert max(counts) <= 1.25 * len(names) / shards
    assert min(counts) >= 0.75 * len(names) / shards
