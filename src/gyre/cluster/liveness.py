"""A process that lives and does not answer for too long counts as dead (FAULTS, I10).

Rule 1: time in which no question was asked says little: a pause of the machine, or of the process
that asks, ends with a question that had no chance of an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable

BEAT_S, SILENT_S = 5.0, 60.0
"""How often a process is asked whether it is there, and for how long it may not answer."""
QUESTIONS = 4
"""In vain, at the least, before a process that may have been paused is ended.

One may have been asked, and another have run out of time, while the asking process stood still.
"""


class SilenceTimer:
    """For how long a process has not answered, counted from the first question."""

    def __init__(self, most_s: float, *, questions: int = 1) -> None:
        """`questions`: it takes so many, because no time between two counts for more than its
        share of all."""
        self._most_s = most_s
        self._share_s = most_s / questions
        self._answered_at: float | None = None
        self._asked_at = 0.0

    def answered(self, now: float) -> None:
        self._answered_at = self._asked_at = now

    def is_over(self, now: float) -> bool:
        """A question had no answer; whether the silence has lasted too long."""
        if self._answered_at is None:
            self.answered(now)
            return self._most_s <= 0
        self._answered_at += max(0.0, now - self._asked_at - self._share_s)
        self._asked_at = now
        return now - self._answered_at >= self._most_s


def ending(status: int, *, was_silent: bool) -> str:
    """How a process ended, for a message; its own log cannot say that it was killed."""
    said = f"ended with status {status}"
    return f"{said}, because it {not_heard()}" if was_silent else said


def not_heard() -> str:
    """Of one that `supervise_until_gone` made to end."""
    return f"did not answer for {SILENT_S:g} s and was ended"


async def wait_or_kill_if_silent(
    ended: Callable[[], Awaitable[object]],
    answers: Callable[[], Awaitable[bool]],
    kill: Callable[[], Awaitable[None]],
    *,
    most_s: float,
    every_s: float,
    clock: Callable[[], float],
) -> bool:
    """Until a process has ended, which is made to if it does not answer for so long.

    It is asked every `every_s`, and any answer shows that it lives. Returns whether it was killed.
    """
    silence, was_silent = SilenceTimer(most_s, questions=QUESTIONS), False
    silence.answered(clock())
    gone = asyncio.ensure_future(ended())
    try:
        while not gone.done():
            await asyncio.wait((gone,), timeout=every_s)
            if gone.done():
                break
            if await answers():
                silence.answered(clock())
            elif silence.is_over(clock()) and not gone.done():
                was_silent = True
                await kill()
        await gone
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    return was_silent


async def supervise_until_gone(
    ended: Callable[[], Awaitable[object]],
    answers: Callable[[], Awaitable[bool]],
    kill: Callable[[], Awaitable[None]],
) -> bool:
    """The same by the loop's clock, with the times that all processes share."""
    clock = asyncio.get_running_loop().time
    return await wait_or_kill_if_silent(
        ended, answers, kill, most_s=SILENT_S, every_s=BEAT_S, clock=clock
    )
