"""A proxy without a controller: it credits calls that wait, and ends itself when nobody comes."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest
from tests.waiting import PATIENCE_S

from gyre.proxy import main
from gyre.proxy.main import OrphanMonitor
from gyre.rollout.spec import TOLD_FILE, ProxyTotals, read_proxy_totals, write_proxy_totals

NAME = "g00000-00"
LONG_S = 1000.0


class Calls:
    """Those of one execution, and how often a controller has asked: before every look, if any."""

    def __init__(self, *, held_s=0.0, has_controller=False):
        self.num_asked, self.held_s, self.num_looks = 0, held_s, 0
        self._has_controller = has_controller

    def held(self):
        self.num_looks += 1
        self.num_asked += self._has_controller
        return {NAME: self.held_s}

    async def looked_at(self, times=2):
        """Twice, so that what followed from the first look is done."""
        until = self.num_looks + times
        while self.num_looks < until:
            await asyncio.sleep(0.001)


@pytest.fixture
def left(tmp_path, monkeypatch):
    """A proxy in a run's folder, looked after; and what its execution was told."""
    monkeypatch.setattr(main, "LOOK_S", 0.01)
    folder = tmp_path / "attempts" / NAME
    folder.mkdir(parents=True)

    @asynccontextmanager
    async def watched(calls, *, alone_s=LONG_S):
        async with asyncio.timeout(PATIENCE_S):
            async with OrphanMonitor(tmp_path, calls, alone_s=alone_s).watching():
                yield folder

    return watched


def test_it_ends_itself_when_no_controller_asks(left):
    async def scenario():
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        async with left(Calls(), alone_s=0.05):
            await told.wait()

    asyncio.run(scenario())


def test_it_stays_for_as_long_as_one_asks(left):
    """Its time alone begins anew with every question."""

    async def scenario():
        calls, told = Calls(has_controller=True), []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told.append, signal.SIGTERM)
        async with left(calls, alone_s=0.005):
            await calls.looked_at(20)
        return told

    assert [] == asyncio.run(scenario())


def credited(left, *, told, counts, has_controller=False):
    """What the execution was told when this proxy counts so many seconds one after the other."""

    async def scenario():
        calls = Calls(held_s=counts[0], has_controller=has_controller)
        async with left(calls) as folder:
            write_proxy_totals(folder, ProxyTotals(held_s=told))
            for held_s in counts[1:]:
                await calls.looked_at()
                calls.held_s = held_s
            await calls.looked_at()
        return read_proxy_totals(folder).held_s

    return asyncio.run(scenario())


def test_time_that_calls_wait_without_a_controller_is_credited(left):
    assert 7.0 == credited(left, told=4.0, counts=(4.0, 7.0))


def test_what_a_controller_did_not_come_to_tell_is_credited_too(left):
    assert 7.0 == credited(left, told=1.0, counts=(4.0, 7.0))


def test_a_proxy_that_counts_anew_adds_to_what_another_counted(left):
    assert 103.0 == credited(left, told=100.0, counts=(4.0, 7.0))


def test_while_a_controller_asks_it_credits_nothing(left):
    assert 4.0 == credited(left, told=4.0, counts=(4.0, 7.0), has_controller=True)


def test_a_disk_that_is_full_does_not_end_it(left):
    """The next look tries again."""

    async def scenario():
        calls = Calls()
        async with left(calls) as folder:
            (folder / TOLD_FILE).mkdir()
            calls.held_s = 7.0
            await calls.looked_at()
            (folder / TOLD_FILE).rmdir()
            while read_proxy_totals(folder).held_s != 7.0:
                await calls.looked_at(1)

    asyncio.run(scenario())
