"""A supervisor's file moves on while its loop turns, and stands still once that is stuck."""

import asyncio
import os
import time

import pytest
from tests.waiting import wait_until

from gyre.rollout import heartbeat
from gyre.rollout.heartbeat import (
    BEAT_FILE,
    BEAT_S,
    STUCK_S,
    Heartbeat,
    last_heartbeat,
    last_spent_s,
)


def test_every_beat_is_another_number_until_the_loop_is_stuck(tmp_path):
    began, beating = time.monotonic(), Heartbeat(tmp_path)
    found = [last_heartbeat(tmp_path), beating.beat(began)]
    os.utime(tmp_path / BEAT_FILE, (1.0, 1.0))
    first = last_heartbeat(tmp_path)
    found.append(beating.beat(began))
    second = last_heartbeat(tmp_path)
    found.append(beating.beat(time.monotonic() + STUCK_S))

    assert [None, True, True, False] == found
    assert first != second == last_heartbeat(tmp_path)


def test_a_loop_that_turns_is_not_stuck(tmp_path):
    async def work(beating):
        turning = asyncio.ensure_future(beating.turn())
        await asyncio.sleep(0)
        turning.cancel()

    beating = Heartbeat(tmp_path)
    beating._turned_at = time.monotonic() - STUCK_S
    before = beating.beat(time.monotonic())
    asyncio.run(work(beating))

    assert [False, True] == [before, beating.beat(time.monotonic())]


def test_the_file_is_there_as_soon_as_it_beats(tmp_path):
    with Heartbeat(tmp_path):
        assert last_heartbeat(tmp_path) is not None


def wait_for_beat(folder):
    """Another one than there was."""
    before = last_heartbeat(folder)
    wait_until(lambda: last_heartbeat(folder) != before)


def test_it_beats_by_itself_for_as_long_as_it_lasts(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    with Heartbeat(tmp_path) as beating:
        wait_for_beat(tmp_path)
        wait_for_beat(tmp_path)
        assert beating._thread.is_alive()

    assert not beating._thread.is_alive()


def test_a_loop_that_stands_still_stops_the_beat(tmp_path, monkeypatch):
    """The thread lives on, and would show for good that somebody does."""
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    monkeypatch.setattr(heartbeat, "STUCK_S", 0.2)
    tried = []

    class Counted(Heartbeat):
        def beat(self, now):
            tried.append(super().beat(now))
            return tried[-1]

    with Counted(tmp_path):
        wait_until(lambda: tried[-1:] == [False])
        still, num_tried = last_heartbeat(tmp_path), len(tried)
        wait_until(lambda: len(tried) >= num_tried + 10)

        assert still == last_heartbeat(tmp_path)
    assert not any(tried[num_tried:])


def test_what_is_spent_is_known_to_the_next_and_exactly_if_the_last_ended_by_itself(tmp_path):
    with Heartbeat(tmp_path) as beating:
        first = last_spent_s(tmp_path)
        beating.charge(lambda: 7.25)
        charged = last_spent_s(tmp_path)
    ended = last_spent_s(tmp_path)
    with Heartbeat(tmp_path):
        next_one = last_spent_s(tmp_path)

    assert [None, 7.25 + BEAT_S, 7.25, 7.25] == [first, charged, ended, next_one]


def test_whoever_is_killed_again_and_again_spends_all_the_same(tmp_path):
    """SPEC 6.1: deadlines are finite, however short the lives are."""
    for number in range(4):
        before = last_spent_s(tmp_path) or 0.0
        Heartbeat(tmp_path).charge(lambda before=before: before)

        assert (number + 1) * BEAT_S == last_spent_s(tmp_path)


def test_what_it_says_is_always_of_the_same_length(tmp_path):
    """On a full disk a file that is there can be written over, and not made longer."""
    sizes = set()
    for spent_s in (0.0, 12.3456, 1e9):
        Heartbeat(tmp_path).charge(lambda spent_s=spent_s: spent_s)
        sizes.add((tmp_path / BEAT_FILE).stat().st_size)

    assert 1 == len(sizes)


@pytest.mark.parametrize("text", ["", "\0\0\0", "nan", "-3.0", "inf", "great"])
def test_what_says_nothing_of_time_is_not_known(text, tmp_path):
    (tmp_path / BEAT_FILE).write_text(text)

    assert last_spent_s(tmp_path) is None
