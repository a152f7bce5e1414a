"""What may end a request before its reply: the client leaves, or the execution is closed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gyre.net.asgi import ClientGone, Exchange
from gyre.proxy.dialects.dialect import Dialect
from gyre.proxy.executions import ProxiedExecution
from gyre.types.errors import GyreError, Unauthorized


class RequestGuard:
    """Watches over one request; while armed, an end cancels the work under way."""

    def __init__(self, exchange: Exchange, execution: ProxiedExecution) -> None:
        loop = asyncio.get_running_loop()
        self._execution = execution
        self._task = asyncio.current_task()
        self._armed = False
        self._error: ClientGone | GyreError | None = None
        self._gone = loop.create_task(exchange.gone())
        self._gone.add_done_callback(self._on_gone)
        self._closed: asyncio.Future[None] = loop.create_future()
        self._closed.add_done_callback(self._on_closed)
        execution.in_progress.add(self._closed)

    @property
    def client_is_gone(self) -> bool:
        return self._gone.done()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Raises ClientGone or Unauthorized out of the block when the request ends meanwhile."""
        if (ended := self._ended()) is not None:
            raise ended
        self._armed = True
        try:
            yield
        except asyncio.CancelledError:
            ended = self._ended()
            if ended is None or self._task is None:
                raise
            self._task.uncancel()
            raise ended from None
        finally:
            self._armed = False

    def stop(self) -> None:
        """Stop watching."""
        self._execution.in_progress.discard(self._closed)
        self._gone.remove_done_callback(self._on_gone)
        self._closed.remove_done_callback(self._on_closed)
        self._gone.cancel()
        self._closed.cancel()

    def _ended(self) -> ClientGone | GyreError | None:
        return self._error

    def _on_gone(self, _: "asyncio.Future[None]") -> None:
        self._end(ClientGone())

    def _on_closed(self, _: "asyncio.Future[None]") -> None:
        self._end(Unauthorized("the execution was closed during the call"))

    def _end(self, error: ClientGone | GyreError) -> None:
        if self._error is None:
            self._error = error
            if self._armed and self._task is not None:
                self._task.cancel()


class Pinger:
    """Writes pings into a stream that waits long; most replies come before the first."""

    def __init__(self, exchange: Exchange, dialect: Dialect, every_s: float) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.get_running_loop().call_later(every_s, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._exchange.write(self._dialect.ping)
            await asyncio.sleep(self._every_s)

    def stop(self) -> None:
        """No ping is written after this."""
        self._first.cancel()
        if self._task is not None:
            self._task.cancel()
