"""A supervisor's file moves on while its loop turns, and stands still once that is stuck."""

import asyncio
import os
import time

from gyre.run.beating import BEAT_FILE, STUCK_S, Beating, last_beat


def test_every_beat_is_another_number_until_the_loop_is_stuck(tmp_path):
    began, beating = time.monotonic(), Beating(tmp_path)
    found = [last_beat(tmp_path), beating.beat(began)]
    os.utime(tmp_path / BEAT_FILE, (1.0, 1.0))
    first = last_beat(tmp_path)
    found.append(beating.beat(began))
    second = last_beat(tmp_path)
    found.append(beating.beat(time.monotonic() + STUCK_S))

    assert [None, True, True, False] == found
    assert first != second == last_beat(tmp_path)


def test_a_loop_that_turns_is_not_stuck(tmp_path):
    async def work(beating):
        turning = asyncio.ensure_future(beating.turn())
        await asyncio.sleep(0)
        turning.cancel()

    beating = Beating(tmp_path)
    beating._turned_at = time.monotonic() - STUCK_S
    before = beating.beat(time.monotonic())
    asyncio.run(work(beating))

    assert [False, True] == [before, beating.beat(time.monotonic())]


def test_the_file_is_there_as_soon_as_it_beats(tmp_path):
    with Beating(tmp_path):
        assert last_beat(tmp_path) is not None
