"""Small asyncio tools: a loop that leaves nothing open, child processes, tasks, waits, a race."""

import asyncio
import signal
import threading
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self, TypeVar
from weakref import WeakKeyDictionary

Spawn = Callable[[Coroutine[Any, Any, None]], object]
T = TypeVar("T")


def run_loop(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """What a coroutine comes to, on a loop of its own that is closed with all that is on it.

    Tasks that are left are cancelled and have ended, then child processes are ended (unless they
    are to outlive the loop) and their pipes closed, then generators and threads of the loop end,
    then it is closed. Signals are handled as they were before.
    """
    before = _handlers()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_closing(main))
    finally:
        # A closed loop of uvloop would still take them, unheard.
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _handlers() -> dict[signal.Signals, Any]:
    """Those that a loop may change; none in a thread, where no handler can be set."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = (
        number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)
    )
    found = {number: signal.getsignal(number) for number in numbers}
    return {one: handler for one, handler in found.items() if handler is not None}


async def _closing(main: Coroutine[Any, Any, T]) -> T:
    try:
        return await main
    finally:
        await _end_tasks()
        await asyncio.gather(*(process.leave() for process in _children()))


async def _end_tasks() -> None:
    loop = asyncio.get_running_loop()
    # A task that is cancelled may start others, to clean up.
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        for task in left:
            if not task.cancelled() and (error := task.exception()) is not None:
                message = "a task that nobody waited for failed"
                loop.call_exception_handler({"message": message, "exception": error, "task": task})


class PipedProcess(Process):
    """A process whose pipes can be closed, also where other processes hold their other ends."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        protocol: SubprocessStreamProtocol,
        *,
        outlives_loop: bool,
    ) -> None:
        """Made by `start_process`."""
        super().__init__(transport, protocol, asyncio.get_running_loop())
        self._pipes = transport
        self._outlives_loop = outlives_loop
        self._is_closed = False

    async def leave(self) -> None:
        """The loop ends: the process is closed, unless it runs and is to go on.

        Its pipes end with this process then: uvloop cannot close a loop with half of them closed.
        """
        if self.returncode is not None or not self._outlives_loop:
            await self.close()

    async def close(self) -> None:
        """It has ended, by a signal if nothing else ended it, and nothing of it is left open."""
        if self._is_closed:
            return
        if self.returncode is None:
            with suppress(ProcessLookupError):
                self.kill()
        # One by one, because closing them together may take its status away from who waits for it.
        for number in range(3):
            pipe = self._pipes.get_pipe_transport(number)
            if pipe is not None and not pipe.is_closing():
                # What has not been read by now is dropped.
                pipe.abort() if isinstance(pipe, asyncio.WriteTransport) else pipe.close()
        await self.wait()
        with suppress(ProcessLookupError):
            self._pipes.close()
        # A pipe closes one turn of the loop after `close`, and its callbacks run after that.
        for _ in range(3):
            await asyncio.sleep(0)
        self._is_closed = True
        _STARTED[asyncio.get_running_loop()].discard(self)


_STARTED: WeakKeyDictionary[asyncio.AbstractEventLoop, set[PipedProcess]] = WeakKeyDictionary()
"""Those of each loop that are not closed."""


def _children() -> list[PipedProcess]:
    return list(_STARTED.get(asyncio.get_running_loop(), ()))


async def start_process(
    program: str,
    *arguments: str,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    outlives_loop: bool = False,
) -> PipedProcess:
    """In a session of its own; its owner closes it, at the latest when the loop ends.

    One that `outlives_loop`, which needs a loop of uvloop, is not ended then.
    """
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=MOST_LINE_BYTES, loop=loop),
        program,
        *arguments,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        start_new_session=True,
    )
    process = PipedProcess(transport, protocol, outlives_loop=outlives_loop)
    _STARTED.setdefault(loop, set()).add(process)
    return process


MOST_LINE_BYTES = 2**16
"""Of what a child process prints, at once."""


class BackgroundTasks:
    """A group of asyncio tasks, all cancelled when their owner leaves the context."""

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
    """One place where changes are announced, and waited for."""

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


class Interrupted(Exception):
    """The awaited event came before the work was done, so the work was cancelled."""


async def run_until(other: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to, if it does so before the other ends; else Interrupted.

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


async def done_within(seconds: float, work: Coroutine[Any, Any, object]) -> bool:
    """Whether the work is done by then; else it has been cancelled, and has ended."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


class WaitTimer:
    """Seconds in which at least one call waited; the caller gives the time."""

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
