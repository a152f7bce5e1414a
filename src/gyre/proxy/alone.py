"""A proxy whose controller is gone: waiting calls are credited by itself, and it ends in time."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gyre.rollout.spec import read_told, write_proxy_totals

LOOK_S = 5.0
"""How often it is noticed whether a controller has asked for anything; one asks every second."""


class ProxyState(Protocol):
    """What a proxy knows of its controller, and of calls that wait."""

    num_asked: int
    """Requests that a controller has made."""

    def held(self) -> dict[str, float]:
        """Seconds that calls waited without an engine, by open execution."""
        ...


class OrphanMonitor:
    """Watches over a proxy for as long as nobody else does."""

    def __init__(self, folder: Path, asked: ProxyState, *, alone_s: float) -> None:
        """`folder` is the run's."""
        self._attempts = folder / "attempts"
        self._asked = asked
        self._alone_s = alone_s

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """While this lasts."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        num_asked, since, held = self._asked.num_asked, loop.time(), self._asked.held()
        while True:
            await asyncio.sleep(min(LOOK_S, self._alone_s))
            before, held = held, self._asked.held()
            if self._asked.num_asked != num_asked:
                num_asked, since = self._asked.num_asked, loop.time()
            elif loop.time() - since >= self._alone_s:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            else:
                await asyncio.to_thread(self._credit, held, before)

    def _credit(self, held: Mapping[str, float], before: Mapping[str, float]) -> None:
        """Deadlines move on by what calls waited, also without a controller (SPEC 6.1).

        What was told may be more than this proxy counts, because there was another before it.
        """
        for execution, held_s in held.items():
            folder = self._attempts / execution
            told = read_told(folder)
            all_s = max(held_s, told.held_s + held_s - before.get(execution, 0.0))
            if all_s > told.held_s and folder.is_dir():
                # A disk that is full now may take it the next time.
                with suppress(OSError):
                    write_proxy_totals(folder, replace(told, held_s=all_s))
