"""Work that is given up as soon as something else has happened."""

import asyncio

import pytest

from gyre.aio import Interrupted, run_until


def raced(work, other):
    async def live():
        async with asyncio.timeout(60.0):
            return await run_until(other(), work())

    return asyncio.run(live())


async def forever():
    await asyncio.Event().wait()


async def soon():
    return "done"


async def fails():
    raise ValueError("of its own")


def test_work_that_is_done_first_is_what_it_came_to():
    assert "done" == raced(soon, forever)


def test_both_done_at_once_the_work_counts():
    assert "done" == raced(soon, soon)


def test_the_other_ends_the_work_and_what_that_held():
    ended = []

    async def work():
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    with pytest.raises(Interrupted):
        raced(work, soon)
    assert [True] == ended


@pytest.mark.parametrize(("work", "other"), [(fails, forever), (forever, fails)])
def test_whoever_fails_says_so(work, other):
    with pytest.raises(ValueError, match="of its own"):
        raced(work, other)
