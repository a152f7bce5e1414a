"""Small asyncio tools: background tasks, condition variable, race, overlapping-wait timer."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class BackgroundTasks:
    """Tasks in one group; entered by their owner, cancelled when it leaves."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._group is not None

    async def __aenter__(self) -> Self:
        self._group = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        group, self._group = self._group, None
        for task in self._tasks:
            task.cancel()
        if group is None:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            # Perhaps the group itself cancelled the owner, because a chore failed.
            await group.__aexit__(kind, error, trace)
        else:
            await group.__aexit__(None, None, None)

    def start(self, chore: Coroutine[None, None, None]) -> None:
        """Nothing is started once the owner has left."""
        if self._group is None:
            chore.close()
            return
        task = self._group.create_task(chore)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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


class WaitTimer:
    """Seconds in which at least one waited; whoever asks says what time it is."""

    def __init__(self) -> None:
        self._num_waiting = 0
        self._since = 0.0
        self._before_s = 0.0

    def begin(self, now: float) -> None:
        """One more waits."""
        if self._num_waiting == 0:
            self._since = now
        self._num_waiting += 1

    def end(self, now: float) -> None:
        """One of them waits no longer."""
        self._num_waiting -= 1
        if self._num_waiting == 0:
            self._before_s += now - self._since

    def total_s(self, now: float) -> float:
        """Until now, those who wait still included."""
        return self._before_s + (now - self._since if self._num_waiting else 0.0)
