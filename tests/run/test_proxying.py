"""The proxy of a run, as real processes: found again, refused, and started again on its port."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import aiohttp
import pytest
from tests.flows.live.running import SCHEDULE, tasks_of, write_run

from gyre.run import proxying
from gyre.run.plans import Places, proxy_plan
from gyre.run.processes import holds_log
from gyre.run.proxying import NAME, Proxying, recorded_plan
from gyre.run.runfile import read_run
from gyre.testing.emulated_run import tables
from gyre.words.errors import ConfigError, TakenOver
from gyre.words.events import ProxyRestarted

PATIENCE_S = 60.0
NOWHERE = "gyre=http://127.0.0.1:9"
"""An engine that is never asked for anything."""


class Run:
    """The folder of a run, and whoever controls its proxy now."""

    def __init__(self, folder):
        tasks = tasks_of(folder, seed=1, mean_s=1)
        found = tables(folder / "run", tasks, {"schedule": SCHEDULE})
        self.config = read_run(write_run(folder / "run.toml", found)).config
        self.places = Places(run=folder / "run", share=folder)
        self.places.pids.mkdir(parents=True)

    @property
    def plan(self):
        return proxy_plan(self.config, self.places, engines=(NOWHERE,), context_tokens=4096)

    @property
    def pid(self):
        return int(self.places.pid(NAME).read_text())

    @property
    def is_alive(self):
        return holds_log(self.pid, self.places.log(NAME))

    @asynccontextmanager
    async def controlled(self, token):
        """By somebody who shows this token."""
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            yield Proxying(
                self.places,
                session,
                note_pid=lambda name, pid: self.places.pid(name).write_text(str(pid)),
            )

    def end(self):
        with suppress(OSError, ValueError):
            if self.is_alive:
                os.kill(self.pid, signal.SIGKILL)


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
    heard, pid, url, url_now, version = asyncio.run(_by(run, "one", scenario))

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
    asyncio.run(_by(run, "one", scenario))

    assert not run.is_alive


def test_one_that_cannot_be_started_is_given_up_by_name(run, monkeypatch):
    monkeypatch.setattr(proxying, "GIVE_UP_S", 0.0)

    async def scenario(first):
        bad = replace(run.plan, model=str(run.places.run / "nothing"))
        with pytest.raises(ConfigError, match="proxy: ended with status 2"):
            await first.take_over(bad, before="one", now="two")

    asyncio.run(_by(run, "two", scenario))

    assert not run.is_alive


async def _by(run, token, scenario):
    async with asyncio.timeout(PATIENCE_S), run.controlled(token) as first:
        return await scenario(first)
