"""Work that is given up as soon as something else has happened."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The other came first, and the work was given up."""


async def run_until(other: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to, if it does so before the other ends; else Overtaken.

    Whichever is not over by then has been cancelled, and has ended.
    """
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(other)
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        waiting.result()
        raise Interrupted
    finally:
        doing.cancel()
        waiting.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
