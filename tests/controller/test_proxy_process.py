"""The proxy of a run, as real processes: found again, refused, and started again on its port."""

import asyncio
import os
import signal
import socket
from dataclasses import replace

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.controller.support.proxy_runs import NOWHERE, Run, by
from tests.waiting import PATIENCE_S, until

from gyre.cluster import liveness
from gyre.controller import proxy_processes
from gyre.controller.proxy_processes import recorded_plan
from gyre.proxy.spec import engines_of
from gyre.types.errors import ConfigError, EngineError, TakenOver
from gyre.types.run_events import ProxyRestarted


@pytest.fixture
def run(tmp_path, monkeypatch):
    # One that takes its time to accept another controller is not to be taken for one that hangs.
    monkeypatch.setattr(proxy_processes, "ANSWER_S", PATIENCE_S)
    made = Run(tmp_path)
    yield made
    made.end()


def test_one_that_dies_is_started_again_at_its_address_and_everybody_hears(run):
    async def scenario(controller):
        first = await controller.start(run.plan)
        url, pid, loop, came = first.client.url, run.pid, FakeRunLoop(), asyncio.Event()
        watching = asyncio.create_task(first.watch(loop, again=came.set))
        os.kill(pid, signal.SIGKILL)
        await came.wait()
        version = await first.client.routes_version()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await first.stop()
        return loop.recorded, pid, url, first.client.url, version

    run.places.token.write_text("one")
    heard, pid, url, url_now, version = asyncio.run(by(run, "one", scenario))

    assert [ProxyRestarted] == [type(one) for one in heard]
    assert (url, 0) == (url_now, version)
    assert pid != run.pid
    assert not run.is_alive


def test_the_next_controller_takes_it_over_unless_it_is_of_another_gyre(run, monkeypatch):
    """An earlier controller is refused, and one of other sources starts another at its address.

    That the folder is known by another name, as by a link, is no move: calls in flight go on.
    """
    link = run.places.run.parent / "link"

    async def scenario(controller):
        first = await controller.start(run.plan)
        pid, url = run.pid, first.client.url
        link.symlink_to(run.places.run)
        run.places = replace(run.places, run=link)
        async with run.controlled("two") as controller:
            second = await controller.take_over(recorded_plan(run.places), before="one", now="two")
            assert (pid, url) == (run.pid, second.client.url)
            assert 0 == await second.ask(lambda proxy: proxy.routes_version())
            with pytest.raises(TakenOver):
                await first.client.routes_version()
        monkeypatch.setattr(proxy_processes, "fingerprint", lambda: "of other sources")
        run.places.token.write_text("three")
        async with run.controlled("three") as controller:
            third = await controller.take_over(recorded_plan(run.places), before="two", now="three")
            assert (True, url) == (pid != run.pid, third.client.url)
            assert 0 == await third.client.routes_version()
            await third.stop()

    run.places.token.write_text("one")
    asyncio.run(by(run, "one", scenario))

    assert not run.is_alive


def test_an_engine_that_moved_is_known_by_its_name_also_to_a_proxy_that_is_started_again(run):
    name, there = NOWHERE.removeprefix("gyre=http://"), "http://127.0.0.2:9"

    async def scenario(controller):
        first = await controller.start(run.plan)
        await first.set_address(name, there)
        names = [list(await first.client.work_of_engines())]
        os.kill(run.pid, signal.SIGKILL)
        names.append(list(await first.ask(lambda proxy: proxy.work_of_engines())))
        with pytest.raises(EngineError, match="no engine 'nobody'"):
            await first.client.set_address("nobody", there)
        await first.stop()
        return names

    run.places.token.write_text("one")
    names = asyncio.run(by(run, "one", scenario))

    assert [[name], [name]] == names
    assert [(name, there)] == [(one.name, one.url) for one in engines_of(recorded_plan(run.places))]


def test_one_that_cannot_be_started_is_given_up_by_name(run, monkeypatch):
    monkeypatch.setattr(proxy_processes, "GIVE_UP_S", 0.0)

    async def scenario(controller):
        bad = replace(run.plan, model=str(run.places.run / "nothing"))
        with pytest.raises(ConfigError, match="proxy: ended with status 2"):
            await controller.take_over(bad, before="one", now="two")

    asyncio.run(by(run, "two", scenario))

    assert not run.is_alive


def test_one_that_hangs_is_ended_and_another_is_started_at_its_address(run, monkeypatch):
    """FAULTS I10: it lives by its process and answers nobody."""
    monkeypatch.setattr(liveness, "SILENT_S", 0.0)
    monkeypatch.setattr(liveness, "BEAT_S", 0.1)
    monkeypatch.setattr(proxy_processes, "ANSWER_S", 0.1)

    said = []
    monkeypatch.setattr(proxy_processes, "warn", said.append)

    async def scenario(controller):
        first = await controller.start(run.plan)
        url, pid = first.client.url, run.pid
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(first.ask(lambda proxy: proxy.routes_version()))
        await until(lambda: run.pid != pid, "another proxy")
        monkeypatch.setattr(liveness, "SILENT_S", PATIENCE_S)
        version = await asked
        await first.stop()
        return pid, url, first.client.url, version

    run.places.token.write_text("one")
    pid, url, url_now, version = asyncio.run(by(run, "one", scenario))

    assert (url, 0) == (url_now, version)
    assert pid != run.pid
    assert ["the proxy did not answer for 0 s and was ended: another takes its place"] == said


def test_one_whose_folder_was_moved_is_started_where_that_is_now(run):
    """It would write its logs where nobody looks for them."""

    async def scenario(controller):
        first = await controller.start(run.plan)
        pid, url = run.pid, first.client.url
        moved = run.places.run.rename(run.places.run.parent / "moved")
        run.places = replace(run.places, run=moved)
        run.places.token.write_text("two")
        async with run.controlled("two") as controller:
            second = await controller.take_over(recorded_plan(run.places), before="one", now="two")
            key = await second.client.open("g00000-00")
            found = pid != run.pid, url == second.client.url, key is not None
            await second.stop()
        return found

    run.places.token.write_text("one")
    found = asyncio.run(by(run, "one", scenario))

    assert (True, True, True) == found
    assert [] != list(run.places.run.rglob("g00000-00*"))
    assert not (run.places.run.parent / "run").exists()


def test_a_port_that_is_taken_is_told_at_once_and_waited_for(run, monkeypatch):
    """People learn whose it is, and need not wait ten minutes for it."""
    told = asyncio.Queue()
    monkeypatch.setattr(proxy_processes, "warn", told.put_nowait)

    async def scenario(controller):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            plan = replace(run.plan, proxy=replace(run.plan.proxy, port=port))
            taking = asyncio.ensure_future(controller.take_over(plan, before="one", now="one"))
            said = await told.get()
            is_waiting = not taking.done()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        return port, said, is_waiting

    run.places.token.write_text("one")
    port, said, is_waiting = asyncio.run(by(run, "one", scenario))

    assert "the proxy does not start" in said
    assert f"port {port} is taken by process {os.getpid()} (" in said
    assert is_waiting
    assert not run.is_alive
