"""A process that lives and does not answer for too long counts as dead (FAULTS, I10).

Rule 1: time in which no question was asked says little: a pause of the machine, or of the process
that asks, ends with a question that had no chance of an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gyre.types.protocols import ProcessHandle

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended, for a message; its own log cannot say that it was killed."""

    status: int
    silent_s: float | None
    """For how long it did not answer before it was killed; None: it ended by itself."""

    def __str__(self) -> str:
        text = f"ended with status {self.status}"
        if self.silent_s is None:
            return text
        return f"{text}, because it did not answer for {self.silent_s:g} s and was ended"


Probe = Callable[[], Awaitable[bool]]
"""Asks a process once; any answer shows that it lives."""


async def wait_or_kill_if_silent(
    process: ProcessHandle, probe: Probe, *, clock: Callable[[], float] | None = None
) -> Exit:
    """Until a process has ended, which it is made to if it does not answer for too long."""
    ended = asyncio.ensure_future(process.wait())
    try:
        was_silent = await silent_before(ended, probe, clock=clock)
        if was_silent:
            await process.kill()
        return Exit(status=await ended, silent_s=SILENT_S if was_silent else None)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


async def silent_before(
    work: "asyncio.Future[Any]", probe: Probe, *, clock: Callable[[], float] | None = None
) -> bool:
    """Whether a process does not answer for too long before this work is done.

    `clock` is the loop's unless another is given.
    """
    now = asyncio.get_running_loop().time if clock is None else clock
    silence = SilenceTimer(SILENT_S, questions=QUESTIONS)
    silence.answered(now())
    while True:
        await asyncio.wait((work,), timeout=BEAT_S)
        if work.done():
            return False
        if await probe():
            silence.answered(now())
        elif silence.is_over(now()) and not work.done():
            return True
