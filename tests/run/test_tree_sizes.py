"""Sizes of trees, read behind the back of whoever asks."""

import asyncio

import pytest
from tests.watch.conftest import Story as Log
from tests.watch.journaled import SMALL, simulated, told

from gyre.journal.writing import write
from gyre.run.tree_sizes import TreeSizes, spread
from gyre.run.watched import Watched
from gyre.sim.recorded import header_of
from gyre.watch.board import KINDS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run in which two executions of many left logs, and another a damaged one."""
    folder = tmp_path_factory.mktemp("run")
    facts = list(told(simulated(SMALL)[1]))
    write(folder / "journal", header_of(SMALL, started_at=0.0), facts, kinds=KINDS)
    for name, many in (("g0-0", 1), ("g1-1", 3)):
        log = Log(execution=name)
        for number in range(many):
            log.call(number, 0, {"system": 10}, 4)
        log.write(folder)
    (folder / "executions" / "g2-2.calls").write_bytes(b"nothing of ours")
    return folder


async def panel_of(place):
    """When everything was read."""
    run = Watched(place, key="a")
    await run.look()
    sizes = TreeSizes(run)
    first = sizes.panel()
    async with asyncio.timeout(30):
        await sizes.wait_read()
    return first, sizes.panel()


def test_trees_are_read_in_the_background(place):
    first, then = asyncio.run(panel_of(place))

    assert (0, 2) == (first["num_read"], then["num_read"])
    assert 12 * 8 * 8 == then["num_closed"]
    assert (3, 1) == (then["calls"]["max"], then["calls"]["num"] - 1)


def test_of_a_long_run_only_so_many_are_read_spread_over_it(place):
    names = [f"g{group}-{member}" for group in range(96) for member in range(8)]

    assert names[::77] == spread(names, most=10)
    assert names == spread(names, most=768)
    assert [] == spread([], most=10)
