"""The proxy of a run, as real processes: found again, refused, and started again on its port."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from tests.run.proxy_runs import NOWHERE, Run, by

from gyre.run import proxying
from gyre.run.proxy import engines_of
from gyre.run.proxying import recorded_plan
from gyre.words.errors import ConfigError, EngineError, TakenOver
from gyre.words.events import ProxyRestarted


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.end()


def test_one_that_dies_is_started_again_at_its_address_and_everybody_hears(run):
    async def scenario(first):
        await first.start(run.plan)
        url, pid, heard, came = first.client.url, run.pid, [], asyncio.Event()
        watching = asyncio.create_task(first.watch(hear=heard.append, again=came.set))
        os.kill(pid, signal.SIGKILL)
        await came.wait()
        version = await first.client.routes_version()
        watching.cancel()
        await first.stop()
        return heard, pid, url, first.client.url, version

    run.places.token.write_text("one")
    heard, pid, url, url_now, version = asyncio.run(by(run, "one", scenario))

    assert [ProxyRestarted] == [type(one) for one in heard]
    assert (url, 0) == (url_now, version)
    assert pid != run.pid
    assert not run.is_alive


def test_the_next_controller_takes_it_over_unless_it_is_of_another_gyre(run, monkeypatch):
    """An earlier controller is refused, and one of other sources starts another at its address."""

    async def scenario(first):
        await first.start(run.plan)
        pid, url = run.pid, first.client.url
        async with run.controlled("two") as second:
            await second.take_over(recorded_plan(run.places), before="one", now="two")
            assert (pid, url) == (run.pid, second.client.url)
            assert 0 == await second.ask(lambda proxy: proxy.routes_version())
            with pytest.raises(TakenOver):
                await first.client.routes_version()
        monkeypatch.setattr(proxying, "fingerprint", lambda: "of other sources")
        run.places.token.write_text("three")
        async with run.controlled("three") as third:
            await third.take_over(recorded_plan(run.places), before="two", now="three")
            assert (True, url) == (pid != run.pid, third.client.url)
            assert 0 == await third.client.routes_version()
            await third.stop()

    run.places.token.write_text("one")
    asyncio.run(by(run, "one", scenario))

    assert not run.is_alive


def test_an_engine_that_moved_is_known_by_its_name_also_to_a_proxy_that_is_started_again(run):
    name, there = NOWHERE.removeprefix("gyre=http://"), "http://127.0.0.2:9"

    async def scenario(first):
        await first.start(run.plan)
        await first.readdress(name, there)
        names = [list(await first.client.work_of_engines())]
        os.kill(run.pid, signal.SIGKILL)
        names.append(list(await first.ask(lambda proxy: proxy.work_of_engines())))
        with pytest.raises(EngineError, match="no engine 'nobody'"):
            await first.client.readdress("nobody", there)
        await first.stop()
        return names

    run.places.token.write_text("one")
    names = asyncio.run(by(run, "one", scenario))

    assert [[name], [name]] == names
    assert [(name, there)] == [(one.name, one.url) for one in engines_of(recorded_plan(run.places))]


def test_one_that_cannot_be_started_is_given_up_by_name(run, monkeypatch):
    monkeypatch.setattr(proxying, "GIVE_UP_S", 0.0)

    async def scenario(first):
        bad = replace(run.plan, model=str(run.places.run / "nothing"))
        with pytest.raises(ConfigError, match="proxy: ended with status 2"):
            await first.take_over(bad, before="one", now="two")

    asyncio.run(by(run, "two", scenario))

    assert not run.is_alive
