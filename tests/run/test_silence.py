"""Who lives and does not answer is gone after a bounded while, and nobody else is."""

import asyncio

from gyre.run.silence import Silence, until_gone

MOST_S = 60.0


class Hung:
    """A process that answers at some times of a clock, which moves on whenever it is asked."""

    def __init__(self, answers_until):
        self.now = 0.0
        self.answers_until = answers_until
        self.killed_at = None
        self._over = asyncio.Event()

    async def ended(self):
        await self._over.wait()

    async def answers(self):
        self.now += 7.0
        return self.now <= self.answers_until

    async def kill(self):
        self.killed_at = self.now
        self._over.set()


def lived(one):
    async def work():
        process = one()
        await until_gone(
            process.ended,
            process.answers,
            process.kill,
            most_s=MOST_S,
            every_s=0.0,
            clock=lambda: process.now,
        )
        return process

    return asyncio.run(work())


def test_one_that_hangs_is_ended_when_its_silence_has_lasted_too_long():
    assert 70.0 + 63.0 == lived(lambda: Hung(answers_until=70.0)).killed_at
    assert 63.0 == lived(lambda: Hung(answers_until=0.0)).killed_at


def test_one_that_ends_by_itself_is_not_ended():
    class Ends(Hung):
        async def answers(self):
            if self.now > 20.0:
                self._over.set()
            return await super().answers()

    assert lived(lambda: Ends(answers_until=0.0)).killed_at is None


def test_silence_is_counted_from_the_first_question_and_anew_from_every_word():
    silence = Silence(MOST_S)
    found = [silence.is_over(one) for one in (1000.0, 1000.0 + MOST_S - 1, 1000.0 + MOST_S)]
    silence.heard(2000.0)

    assert [False, False, True] == found
    assert not silence.is_over(2000.0 + MOST_S - 1)
