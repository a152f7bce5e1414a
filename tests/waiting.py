"""How long tests wait, in one place: until something holds, for as long as this machine may need.

No test decides by a sleep. What must come to hold is asked for again and again until PATIENCE_S is
over, which only a hang reaches: it is long, and longer still where the machine is slow or busy.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

REFERENCE_S = 0.08
"""What `_work` takes on an idle core of an ordinary server."""
POLL_S = 0.01


def _work() -> None:
    """More than one turn of the scheduler's, so that others on the machine slow it down too."""
    total = 0
    for number in range(2_000_000):
        total += number


def _slowness() -> float:
    """How many times longer this machine takes than the reference, now; at least 1, at most 8."""
    begun = time.perf_counter()
    _work()
    return min(8.0, max(1.0, (time.perf_counter() - begun) / REFERENCE_S))


SLOWNESS = _slowness()
PATIENCE_S = 180.0 * SLOWNESS
"""After this a test gives up; nothing that works comes near it."""


def patience(seconds: float) -> float:
    """A limit that a test hands to the product, for a machine as slow as this one."""
    return seconds * SLOWNESS


def wait_until(
    holds: Callable[[], object], what: str = "", *, within_s: float = PATIENCE_S
) -> None:
    """Returns once it holds; fails, and says what did not come, when patience is over."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what or holds}"
        time.sleep(POLL_S)


async def until(
    holds: Callable[[], object | Awaitable[object]], what: str = "", *, within_s: float = PATIENCE_S
) -> None:
    """The same on an event loop, which runs meanwhile; `holds` may be a coroutine function."""
    end = time.monotonic() + within_s
    while True:
        found = holds()
        if await found if isawaitable(found) else found:
            return
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what or holds}"
        await asyncio.sleep(POLL_S)
