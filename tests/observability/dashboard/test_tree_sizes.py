"""Sizes of trees, read behind the back of whoever asks."""

import asyncio

import pytest
from tests.observability.conftest import Story as Log
from tests.observability.support.journals import SMALL, simulated, told
from tests.waiting import PATIENCE_S

from gyre.journal.journal import write
from gyre.observability.dashboard.journal_follower import FollowedRun
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.dashboard.tree_sizes import TreeSizes, evenly_spaced
from gyre.observability.history.run import RunHistory
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run in which two executions of many left logs, and another a damaged one."""
    folder = tmp_path_factory.mktemp("run")
    facts = list(told(simulated(SMALL)[1]))
    write(folder / "journal", header_of(SMALL, started_at=0.0), facts, kinds=JOURNAL_EVENTS)
    for name, many in (("g0-0", 1), ("g1-1", 3)):
        log = Log(execution=name)
        for number in range(many):
            log.call(number, 0, {"system": 10}, 4)
        log.write(folder)
    (folder / "executions" / "g2-2.calls").write_bytes(b"nothing of ours")
    return folder


async def panel_of(place):
    """When everything was read."""
    run = FollowedRun(place, key="a")
    await run.look()
    sizes = TreeSizes(run)
    first = sizes.panel()
    async with asyncio.timeout(PATIENCE_S):
        await sizes.wait_read()
    return first, sizes.panel(), sizes, run.history


def test_trees_are_read_in_the_background(place):
    first, then, *_ = asyncio.run(panel_of(place))

    assert (0, 2) == (first["num_read"], then["num_read"])
    assert (True, False) == (first["is_reading"], then["is_reading"])
    assert 12 * 8 * 8 == then["num_closed"]
    assert (3, 1) == (then["calls"]["max"], then["calls"]["num"] - 1)


def test_trees_of_executions_that_close_later_are_not_shown(place):
    async def at_moments():
        *_, sizes, history = await panel_of(place)
        closed = sorted(history.work.attempt(one, one).closed_s for one in (0, 1))
        early = ViewWindow(at_s=closed[0], from_s=0.0, to_s=closed[0])
        late = ViewWindow(at_s=history.now_s, from_s=closed[0] + 1e-6, to_s=history.now_s)
        return [sizes.panel(one) for one in (early, late)], history, closed[0]

    (early, late), history, first_s = asyncio.run(at_moments())
    assert (1, 1) == (early["num_read"], late["num_read"])
    assert sum(history.work.outcomes_at(first_s).values()) == early["num_closed"]
    assert 12 * 8 * 8 == early["num_closed"] + late["num_closed"]


def test_of_a_long_run_only_so_many_are_read_spread_over_it(place):
    names = [f"g{group}-{member}" for group in range(96) for member in range(8)]

    assert names[::81] == evenly_spaced(names, most=10)
    assert names == evenly_spaced(names, most=768)
    assert [] == evenly_spaced([], most=10)


def test_those_that_are_read_stay_the_same_while_others_come_and_close(place, monkeypatch):
    """Else every tree of a long run would be read in the end."""
    monkeypatch.setattr("gyre.observability.dashboard.tree_sizes.MOST_TREES", 50)
    facts = list(told(simulated(SMALL)[1]))

    read = []

    class Noted(FollowedRun):
        def log_of(self, execution):
            read.append(execution)
            return super().log_of(execution)

    async def grow():
        run = Noted(place, key="a")
        run.history = RunHistory(SMALL.shape)
        sizes = TreeSizes(run)
        for begin in range(0, len(facts), 40):
            run.history.record_all(facts[begin : begin + 40])
            sizes.panel()
            await sizes.wait_read()
        return sizes.panel()

    assert not asyncio.run(grow())["is_reading"]
    assert 20 < len(read) == len(set(read)) < 150
