"""A process that lives and says nothing for too long counts as dead (FAULTS, I10)."""

import asyncio
from collections.abc import Awaitable, Callable

BEAT_S, SILENT_S = 5.0, 60.0
"""How often a process is asked whether it is there, and for how long it may not answer."""


class Silence:
    """For how long somebody has not been heard of, counted from when that was first asked."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._heard_at: float | None = None

    def heard(self, now: float) -> None:
        self._heard_at = now

    def is_over(self, now: float) -> bool:
        """It has lasted too long."""
        if self._heard_at is None:
            self._heard_at = now
        return now - self._heard_at >= self._most_s


async def until_gone(
    ended: Callable[[], Awaitable[object]],
    answers: Callable[[], Awaitable[bool]],
    kill: Callable[[], Awaitable[None]],
    *,
    most_s: float,
    every_s: float,
    clock: Callable[[], float],
) -> None:
    """Until a process has ended, which is made to if it does not answer for so long.

    It is asked every so often, and whatever it answers shows that it lives.
    """
    silence = Silence(most_s)
    silence.heard(clock())
    gone = asyncio.ensure_future(ended())
    try:
        while not gone.done():
            await asyncio.wait((gone,), timeout=every_s)
            if gone.done():
                break
            if await answers():
                silence.heard(clock())
            elif silence.is_over(clock()):
                await kill()
        await gone
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def heard_of(
    ended: Callable[[], Awaitable[object]],
    answers: Callable[[], Awaitable[bool]],
    kill: Callable[[], Awaitable[None]],
) -> None:
    """The same by the loop's clock, with the patience that every process is given."""
    clock = asyncio.get_running_loop().time
    await until_gone(ended, answers, kill, most_s=SILENT_S, every_s=BEAT_S, clock=clock)
