"""Whoever waits for something to hold looks again whenever there is news."""

import asyncio
from collections.abc import Callable


class ChangeSignal:
    """One place where changes are told, and waited for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def next(self) -> None:
        await self._event.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.next()
