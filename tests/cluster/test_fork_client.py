"""A nursery forks what it has imported; its children are processes like any others."""

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest
import uvloop
from tests.waiting import PATIENCE_S, until, wait_until

from gyre.aio import run_loop
from gyre.cluster.fork_client import ForkClient
from gyre.cluster.process import LocalProcess
from gyre.types.errors import ConfigError
from gyre.types.protocols import LOST

pytestmark = pytest.mark.slow


def with_nursery(work, folder, module="tests.cluster.support.forked"):
    async def live():
        fork_client = await ForkClient.open(module, folder / "nursery.log")
        try:
            return await work(fork_client)
        finally:
            await fork_client.close()

    # The loop of a real controller, which starts processes in a way of its own.
    return run_loop(live(), loop_factory=uvloop.new_event_loop)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_is_a_session_of_its_own_and_its_status_is_heard(tmp_path):
    async def work(fork_client):
        children = [
            await fork_client.fork(
                "one", ["say", str(tmp_path / name)], log=tmp_path / "log", secret=f"secret {name}"
            )
            for name in "ab"
        ]
        return [(one.pid, await one.wait()) for one in children]

    ended = with_nursery(work, tmp_path)

    assert [7, 7] == [status for _, status in ended]
    said = [(tmp_path / name).read_text().split(" ", 3) for name in "ab"]
    assert [str(pid) for pid, _ in ended] == [pid for _, pid, _, _ in said]
    assert [pid for _, pid, _, _ in said] == [session for _, _, session, _ in said]
    assert ["secret a", "secret b"] == [told for *_, told in said]
    assert 1 == len({parent for parent, *_ in said}), "both were forked from what was imported once"


def test_a_child_says_when_it_is_ready_and_ends_when_it_is_told_to(tmp_path):
    async def work(fork_client):
        child = await fork_client.fork("server", ["serve"], log=tmp_path / "log")
        url = await child.ready(PATIENCE_S)
        await child.stop()
        return url, await child.wait()

    assert ("http://here", -signal.SIGTERM) == with_nursery(work, tmp_path)


def test_what_a_module_or_a_child_prints_is_in_the_logs_and_no_answer(tmp_path):
    """Else nothing that the fork server says later would be heard, of any child."""

    async def work(fork_client):
        other = await fork_client.fork("other", ["serve"], log=tmp_path / "other.log")
        child = await fork_client.fork("server", ["print and serve"], log=tmp_path / "log")
        url = await child.ready(PATIENCE_S)
        await asyncio.gather(child.stop(), other.stop())
        return url, await child.wait(), await other.wait()

    ended = -signal.SIGTERM
    assert ("http://here", ended, ended) == with_nursery(
        work, tmp_path, "tests.cluster.support.printing"
    )
    assert "a library says hello\n" == (tmp_path / "log").read_text()
    assert "a library is imported\n" == (tmp_path / "nursery.log").read_text()


def test_a_child_that_ends_before_it_is_ready_is_refused_with_its_last_words(tmp_path):
    async def work(fork_client):
        child = await fork_client.fork("cell-3", ["fail"], log=tmp_path / "log")
        await child.ready(PATIENCE_S)

    with pytest.raises(ConfigError, match=r"cell-3: ended with status 1") as refused:
        with_nursery(work, tmp_path)

    assert str(refused.value).endswith("RuntimeError: a newborn that cannot be")


def test_an_order_that_comes_too_early_waits(tmp_path):
    async def work(fork_client):
        child = await fork_client.fork(
            "x", ["wait for order", str(tmp_path / "o")], log=tmp_path / "l"
        )
        child.signal(signal.SIGUSR1)
        return await child.wait()

    assert 0 == with_nursery(work, tmp_path)
    assert "heard" == (tmp_path / "o").read_text()


def test_only_what_lasts_outlives_its_nursery(tmp_path):
    async def work(fork_client):
        log = tmp_path / "log"
        return [
            (await fork_client.fork("x", ["serve"], log=log, outlives_parent=outlives)).pid
            for outlives in (True, False)
        ]

    lasting, other = with_nursery(work, tmp_path)

    try:
        wait_until(lambda: not is_alive(other), "the end of what does not last")
        assert is_alive(lasting)
    finally:
        os.kill(lasting, signal.SIGKILL)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def kill_nursery_of(child, fork_client):
    os.kill(parent_of(child.pid), signal.SIGKILL)
    await until(lambda: fork_client.is_over, "the end of the nursery")


@pytest.mark.parametrize("outlives", [True, False])
def test_ends_of_children_are_still_heard_after_their_nursery_was_killed(tmp_path, outlives):
    """Of each by itself, whether or not another nursery was opened meanwhile."""

    async def work(fork_client):
        first, second = [
            await fork_client.fork(
                name, ["serve"], log=tmp_path / f"{name}.log", outlives_parent=outlives
            )
            for name in ("first", "second")
        ]
        if not outlives:
            await asyncio.gather(first.ready(PATIENCE_S), second.ready(PATIENCE_S))
        await kill_nursery_of(first, fork_client)
        first.signal(signal.SIGKILL)
        ends = [await asyncio.wait_for(first.wait(), PATIENCE_S)]
        new = await fork_client.fork("new", ["say", str(tmp_path / "a")], log=tmp_path / "new.log")
        ends.append(await new.wait())
        assert not second.is_over
        second.signal(signal.SIGKILL)
        return [*ends, await asyncio.wait_for(second.wait(), PATIENCE_S)]

    assert [LOST, 7, LOST] == with_nursery(work, tmp_path)


def test_a_killed_nursery_takes_nothing_from_the_one_that_is_opened_in_its_place(tmp_path):
    """What it leaves behind is about its own children, however late it is read."""

    async def work(fork_client):
        old = await fork_client.fork("old", ["hold on"], log=tmp_path / "old.log")
        await kill_nursery_of(old, fork_client)
        new = await fork_client.fork("new", ["serve"], log=tmp_path / "new.log")
        old.signal(signal.SIGKILL)
        url = await new.ready(PATIENCE_S)
        assert LOST == await asyncio.wait_for(old.wait(), PATIENCE_S)
        await new.stop()
        return url, await new.wait()

    assert ("http://here", -signal.SIGTERM) == with_nursery(work, tmp_path)


def test_a_request_that_could_not_be_written_leaves_no_failure_behind(tmp_path, monkeypatch):
    said = []

    async def refuses(line):
        raise BrokenPipeError

    async def work(fork_client):
        asyncio.get_running_loop().set_exception_handler(lambda _, about: said.append(about))
        with monkeypatch.context() as patched:
            patched.setattr(LocalProcess, "tell", lambda _, line: refuses(line))
            with pytest.raises(ConfigError, match="has ended"):
                await fork_client.fork("one", [], log=tmp_path / "log")

    with_nursery(work, tmp_path)
    gc.collect()

    assert [] == said
