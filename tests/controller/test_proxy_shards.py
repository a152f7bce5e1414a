"""The proxy of a run in several processes: each has its executions, and dies and returns alone."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.controller.support.proxy_runs import Run
from tests.waiting import PATIENCE_S, until

from gyre.controller import proxy_processes
from gyre.controller.proxy_processes import recorded_plans, shard_plan
from gyre.proxy.admin_client import control
from gyre.storage import call_log
from gyre.types.errors import ConfigError
from gyre.types.ids import shard_of
from gyre.types.run_events import ProxyRestarted

FIRST, SECOND = "two", "one"
"""Executions of the first shard of two, and of the second."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    # One that takes its time to accept another controller is not to be taken for one that hangs.
    monkeypatch.setattr(proxy_processes, "ANSWER_S", PATIENCE_S)
    made = Run(tmp_path, shards=2)
    made.places.token.write_text("one")
    yield made
    made.end()


async def with_shards(run, token, scenario):
    async with asyncio.timeout(PATIENCE_S), run.controlled_shards(token) as shards:
        return await scenario(shards)


def test_the_names_are_of_two_shards():
    assert (0, 1) == (shard_of(FIRST, 2), shard_of(SECOND, 2))


def test_an_execution_is_opened_reached_and_closed_at_its_shard_and_at_no_other(run):
    async def scenario(shards):
        await shards.start(run.plan)
        proxies = shards.client
        keys = [await proxies.open(name) for name in (FIRST, SECOND)]
        again = [await proxies.open(name) for name in (FIRST, SECOND)]
        held = [await one.held() for one in proxies.shards]
        everywhere = await proxies.held()
        closed = control(run.places.run, "POST", f"executions/{SECOND}/close", {}, execution=SECOND)
        with pytest.raises(ConfigError, match="shard 1's, not this one's"):
            control(run.places.run, "POST", "executions", {"id": SECOND})
        sealed = await proxies.seal(FIRST)
        urls = [proxies.url_of(name) for name in (FIRST, SECOND)]
        of_shards = [one.url for one in proxies.shards]
        await shards.stop()
        return keys, again, held, everywhere, closed, sealed, urls, of_shards

    found = asyncio.run(with_shards(run, "one", scenario))
    keys, again, held, everywhere, closed, sealed, urls, of_shards = found

    assert all(key.startswith("gyre-") for key in keys)
    assert [None, None] == again
    assert [{FIRST: 0.0}, {SECOND: 0.0}] == held
    assert {FIRST: 0.0, SECOND: 0.0} == everywhere
    assert (True, 0) == (closed["closed"], sealed.committed_calls)
    assert [f"{url}/exec/{name}" for url, name in zip(of_shards, (FIRST, SECOND), strict=True)] == (
        urls
    )
    assert 2 == len(set(of_shards))
    assert [SECOND, FIRST] == [
        path.name.removesuffix(call_log.SUFFIX) for path in call_log.logs(run.places.run)
    ]


def test_one_that_dies_comes_back_at_its_address_and_the_others_do_not_notice(run):
    async def scenario(shards):
        await shards.start(run.plan)
        proxies, loop, came = shards.client, FakeRunLoop(), asyncio.Queue()
        urls, pids = [one.url for one in proxies.shards], [run.pid_of(0), run.pid_of(1)]
        await proxies.open(FIRST)
        await proxies.shards[0].assign(7, {FIRST: None})
        watching = asyncio.create_task(shards.watch(loop, again=came.put_nowait))
        os.kill(pids[1], signal.SIGKILL)
        shard = await came.get()
        versions = [await one.routes_version() for one in proxies.shards]
        held = await proxies.held()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        now = [run.pid_of(0), run.pid_of(1)]
        await shards.stop()
        return (
            loop.recorded,
            shard,
            urls,
            [one.url for one in proxies.shards],
            pids,
            now,
            versions,
            held,
        )

    heard, shard, before, after, pids, now, versions, held = asyncio.run(
        with_shards(run, "one", scenario)
    )

    assert [ProxyRestarted] == [type(one) for one in heard]
    assert (1, before) == (shard, after)
    assert (pids[0], False) == (now[0], pids[1] == now[1])
    assert [7, 0] == versions
    assert {FIRST: 0.0} == held
    assert (False, False) == (run.lives(0), run.lives(1))


def test_the_next_controller_takes_over_those_that_live_and_starts_those_that_do_not(run):
    async def scenario(shards):
        await shards.start(run.plan)
        urls, pids = [one.url for one in shards.client.shards], [run.pid_of(0), run.pid_of(1)]
        os.kill(pids[0], signal.SIGKILL)
        await until(lambda: not run.lives(0), "its end")
        run.places.token.write_text("two")
        async with run.controlled_shards("two") as second:
            plans = recorded_plans(run.places, 2)
            await second.take_over(plans, before="one", now="two")
            versions = await second.ask(lambda proxy: proxy.routes_version())
            now = [run.pid_of(0), run.pid_of(1)]
            found = [one.url for one in second.client.shards]
            await second.stop()
        return urls, found, pids, now, versions

    urls, found, pids, now, versions = asyncio.run(with_shards(run, "one", scenario))

    assert (urls, [0, 0]) == (found, versions)
    assert (False, pids[1]) == (pids[0] == now[0], now[1])


def test_where_one_cannot_be_started_none_is_left(run):
    plan = run.plan
    (run.places.run / "commits-1").mkdir()

    async def scenario(shards):
        with pytest.raises(ConfigError, match="proxy-1: ended with status"):
            await shards.start(plan)

    asyncio.run(with_shards(run, "one", scenario))

    assert (False, False) == (run.lives(0), run.lives(1))


def test_a_port_that_was_chosen_is_the_first_of_as_many(run):
    plan = run.plan
    given = replace(plan, proxy=replace(plan.proxy, port=8400))

    assert (8400, 8401) == tuple(shard_plan(given, one).proxy.port for one in (0, 1))
    assert (0, 0) == tuple(shard_plan(plan, one).proxy.port for one in (0, 1))
