"""Who lives and does not answer is gone after a bounded while, and nobody else is."""

import asyncio

import pytest

from gyre.cluster import liveness
from gyre.cluster.liveness import SILENT_S, Exit, SilenceTimer, wait_or_kill_if_silent

MOST_S = SILENT_S
LONG_S = 100 * MOST_S
"""A pause."""


class Hung:
    """A process that answers at some times of a clock, which moves on whenever it is asked."""

    def __init__(self, answers_until):
        self.now = 0.0
        self.answers_until = answers_until
        self.killed_at = None
        self.silent_s = None
        self._over = asyncio.Event()

    async def wait(self):
        await self._over.wait()
        return 0 if self.killed_at is None else -9

    async def answers(self):
        self.now += 7.0
        return self.now <= self.answers_until

    async def kill(self):
        self.killed_at = self.now
        self._over.set()


@pytest.fixture
def lived(monkeypatch):
    """A process, after it has ended."""
    monkeypatch.setattr(liveness, "BEAT_S", 0.0)

    def lived(made):
        async def work():
            process = made()
            end = await wait_or_kill_if_silent(process, process.answers, clock=lambda: process.now)
            assert (0 if process.killed_at is None else -9) == end.status
            process.silent_s = end.silent_s
            return process

        return asyncio.run(work())

    return lived


def test_one_that_hangs_is_ended_when_its_silence_has_lasted_too_long(lived):
    found = [lived(lambda until=until: Hung(answers_until=until)) for until in (70.0, 0.0)]

    assert [70.0 + 63.0, 63.0] == [one.killed_at for one in found]
    assert [MOST_S, MOST_S] == [one.silent_s for one in found]


def test_one_that_ends_by_itself_is_not_ended(lived):
    class Ends(Hung):
        async def answers(self):
            if self.now > 20.0:
                self._over.set()
            return await super().answers()

    found = lived(lambda: Ends(answers_until=0.0))

    assert (None, None) == (found.killed_at, found.silent_s)


def test_one_that_ends_while_it_is_asked_for_the_last_time_is_not_ended(lived):
    """Nobody is told that it was."""

    class Ends(Hung):
        async def answers(self):
            if self.now + 7.0 >= MOST_S:
                self._over.set()
                for _ in range(10):
                    await asyncio.sleep(0)
            return await super().answers()

    found = lived(lambda: Ends(answers_until=0.0))

    assert (None, None) == (found.killed_at, found.silent_s)


@pytest.mark.parametrize("paused", range(3))
def test_one_whose_asker_stood_still_is_asked_again_before_it_is_ended(lived, paused):
    """A time-out that passed during a pause fires before the answer is read."""

    class Paused(Hung):
        """It answers every question, but the one over which everything stood still."""

        num_asked = 0

        async def answers(self):
            self.num_asked += 1
            if self.num_asked > 8:
                self._over.set()
            if self.num_asked == paused + 1:
                self.now += LONG_S
                return False
            return await super().answers()

    found = lived(lambda: Paused(answers_until=2 * LONG_S))

    assert (None, None) == (found.killed_at, found.silent_s)


def test_whoever_stands_still_again_and_again_asks_several_times_before_it_ends_anybody(lived):
    """And still comes to an end: one that hangs is found out however seldom it is asked."""

    class Paused(Hung):
        num_asked = 0

        async def answers(self):
            self.num_asked += 1
            self.now += LONG_S
            return False

    found = lived(lambda: Paused(answers_until=0.0))

    assert (4, MOST_S) == (found.num_asked, found.silent_s)


def test_silence_is_counted_from_the_first_question_and_anew_from_every_word():
    silence = SilenceTimer(MOST_S)
    found = [silence.is_over(one) for one in (1000.0, 1000.0 + MOST_S - 1, 1000.0 + MOST_S)]
    silence.answered(2000.0)

    assert [False, False, True] == found
    assert not silence.is_over(2000.0 + MOST_S - 1)


def test_time_in_which_nobody_asked_counts_for_no_more_than_one_question():
    silence = SilenceTimer(MOST_S, questions=4)
    silence.answered(0.0)
    paused = silence.is_over(LONG_S)
    awake = [silence.is_over(LONG_S + after_s) for after_s in (10.0, 20.0, 30.0, 44.0, 45.0)]

    assert [False, *[False] * 4, True] == [paused, *awake]


def test_people_read_who_was_made_to_end_and_why():
    made = f"ended with status -9, because it did not answer for {SILENT_S:g} s and was ended"

    assert made == str(Exit(status=-9, silent_s=SILENT_S))
    assert "ended with status 1" == str(Exit(status=1, silent_s=None))
