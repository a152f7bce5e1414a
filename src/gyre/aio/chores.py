"""Small tasks of their own that end with whoever started them."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

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
