"""The scheduler's live loop: journals each fact, asks the scheduler, has its commands executed.

It is what the controller's components are given: the time, the journal, tasks, and the run's end.

Rule 1: a listener sees a fact after it is in the journal; a full disk makes the whole run wait.
Rule 2: the loop decides nothing; the same journal gives a fresh scheduler's same commands.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from gyre.journal.journal import Journal
from gyre.scheduler.messages import Command, StopReason, TimerFired
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import InternalError
from gyre.types.run_events import JournalWaited

RETRY_S = 1.0
"""Pause before a disk that took nothing is tried again."""

Listener = Callable[[float, Any], None]
"""Called with every fact of the journal and its time, once it is there."""
Decided = Callable[[Scheduler, float, Any, Sequence[Command]], None]
"""Called with the scheduler, the time of every event, the event, and the commands that follow."""


def warn(message: str) -> None:
    """The alarm of a run loop that is given none."""
    sys.stderr.write(f"gyre: {message}\n")
    sys.stderr.flush()


class Executor(Protocol):
    """Has commands executed, and acts on facts in the journal; a run's is `CommandExecutor`."""

    def execute(self, commands: Sequence[Command]) -> None:
        """Starts what is ordered after an event, if anything is, and returns at once."""

    def noticed(self, now: float, fact: Any) -> None: ...


class RunLoop:
    """Journals every fact, asks the scheduler about events, and has its commands executed."""

    def __init__(
        self,
        scheduler: Scheduler,
        journal: Journal,
        *,
        listeners: Sequence[Listener] = (),
        decided: Decided | None = None,
        alarm: Callable[[str], None] = warn,
    ) -> None:
        """`alarm` says at once what a user must mend before the run can go on."""
        self.scheduler = scheduler
        self._journal = journal
        self._executor: Executor | None = None
        self._listeners = tuple(listeners)
        self._decided = decided
        self._alarm = alarm
        self._loop = asyncio.get_running_loop()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopped: asyncio.Future[StopReason | None] = self._loop.create_future()
        """Why the run ends; None if it was asked to."""
        self._base_s = journal.now - self._loop.time()
        self._inbox: deque[Any] = deque()
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._decided_at = journal.now

    @property
    def now(self) -> float:
        """Seconds since the run began; time without a controller is not counted."""
        return max(self._base_s + self._loop.time(), self._journal.now)

    def record(self, fact: Any) -> None:
        """Takes an event for the scheduler, or a run event, in the order in which they come."""
        self._inbox.append(fact)
        self._idle.clear()
        self._came.set()

    async def settled(self) -> None:
        """All recorded facts have been decided on, and the resulting commands are under way."""
        await self._idle.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """The work goes on beside the loop, while that runs; if it fails, so does the run."""
        if self._group is None:
            work.close()
            raise InternalError("the run loop is not running, and starts no task")
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self, reason: StopReason | None) -> None:
        """The run ends; None if it was asked to. The first reason counts."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def attach(self, executor: Executor) -> None:
        """It executes every command, and notices facts after all listeners; once, before `run`."""
        if self._executor is not None:
            raise InternalError("the run loop has an executor")
        self._executor = executor
        self._listeners = (*self._listeners, executor.noticed)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """A context in which facts are decided on and tasks run; those left end with it."""
        if self._executor is None:
            raise InternalError("the run loop starts without an executor")
        async with asyncio.TaskGroup() as self._group:
            self.spawn(self._work())
            yield
            for task in self._tasks:
                task.cancel()

    async def _work(self) -> None:
        """Takes recorded facts and has them decided on until it is cancelled."""
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while self._inbox:
                    await self._take()
                self._idle.set()
                self._set_timer()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _take(self) -> None:
        """One commit for all that has come, then one decision after the other."""
        now = self.now
        facts = list(self._inbox)
        self._inbox.clear()
        for fact in facts:
            self._journal.append(fact, now=now)
        await self._commit()
        for fact in facts:
            if isinstance(fact, EVENTS):
                self._decide(fact, now)
            for listener in self._listeners:
                listener(now, fact)

    async def _commit(self) -> None:
        """As often as it takes: the facts are kept, and what follows from them waits (SPEC 10)."""
        began: float | None = None
        while True:
            try:
                self._journal.commit()
            except OSError as error:
                if began is None:
                    began, reason = self._loop.time(), str(error)
                    self._alarm(f"the journal cannot be written, and the run waits: {error}")
                await asyncio.sleep(RETRY_S)
            else:
                break
        if began is not None:
            waited_s = self._loop.time() - began
            self._alarm(f"the journal is written again after {waited_s:.0f} s")
            self.record(JournalWaited(seconds=waited_s, reason=reason))

    def _decide(self, event: Any, now: float) -> None:
        assert self._executor is not None
        commands = self.scheduler.handle(event, now)
        self._decided_at = now
        if self._decided is not None:
            self._decided(self.scheduler, now, event, commands)
        self._executor.execute(commands)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # As of what it knows, because a slow disk may let a time go by between knowing and asking.
        at = self.scheduler.wake_at(self._decided_at)
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - self.now), self._fire, at)

    def _fire(self, at: float) -> None:
        self._timer = None
        if self.now < at:
            self._set_timer()  # The loop's clock is coarser than the scheduler's.
        else:
            self.record(TimerFired())
