"""A socket and a server for an ASGI application, which runs until its process gets a signal."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gyre.types.errors import ConfigError

STOP_S = 30
"""How long requests in flight may take to end once the process got SIGINT or SIGTERM."""
IDLE_S = 75
"""How long a connection may say nothing that becomes a request."""
GONE_S = 60.0
"""How long a client may take nothing of its reply, or not answer for its connection."""
HEAD_BYTES = 2**18
"""Of a request before its body, or after it; no client of ours comes near, and sending them needs
no key."""
HEAD_LINES = 256


def listener(
    host: str, port: int, *, send_bytes: int | None = None, gone_s: float = GONE_S
) -> socket.socket:
    """A socket that takes connections; port 0 picks a free one.

    `send_bytes` is how much of a reply the kernel takes before the client has any. Connections
    inherit that, and that a client which is gone without a word counts as gone after `gone_s`.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _watch(made, gone_s)
    if send_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    made.listen(2048)
    return made


def _watch(listening: socket.socket, gone_s: float) -> None:
    """The kernel asks silent clients whether they are there, and gives up those that are not."""
    if sys.platform != "linux":
        return
    between_s = max(1, round(gone_s / 4))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, between_s)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between_s)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(gone_s * 1000))


class _Server(uvicorn.Server):
    """A server that leaves signals to its owner."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection whose requests have heads of bounded size, lines and time.

    An application bounds bodies, but it sees a request only when all of its head has come.
    """

    _unused_bytes = 0
    """Since the last byte of a body, or the last end of anything."""
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A second write returns only after the kernel has taken all of the first.
        transport.set_write_buffer_limits(high=0)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unused_bytes > HEAD_BYTES:
            self.send_400_response(f"expected at most {HEAD_BYTES} bytes around a body")
        elif self._patience is None and (self.cycle is None or self.cycle.response_complete):
            # Blank lines, or the rest of what was refused, which is never answered.
            self._wait()

    def on_message_begin(self) -> None:
        self._wait()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEAD_LINES:
            # The parser wraps it, and the protocol answers that with a 400.
            raise ValueError(f"expected at most {HEAD_LINES} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._unused_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_waiting()
        self._unused_bytes = 0
        super().on_message_complete()

    def _wait(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _server(app: Callable[..., Any]) -> _Server:
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        server_header=False,
        date_header=False,
        # A warning for each malformed request would let a client fill the disk.
        log_level="error",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    return _Server(config)


def told_to_stop() -> asyncio.Event:
    """Set by SIGINT or SIGTERM from now on."""
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_requested.set)
    return stop_requested


@asynccontextmanager
async def serving(app: Callable[..., Any], on: socket.socket) -> AsyncIterator[None]:
    """The application answers while this lasts."""
    server = _server(app)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([on]))
        try:
            yield
        finally:
            server.should_exit = True


async def serve_until_told(
    app: Callable[..., Any],
    on: socket.socket,
    *,
    on_start: Callable[[], None],
    stopping: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Runs until SIGINT or SIGTERM; `stopping` is awaited while requests in flight end."""
    server = _server(app)
    stop_requested = told_to_stop()
    # After that, because a process that learns of the start may send the signal at once.
    on_start()

    async def stop() -> None:
        await stop_requested.wait()
        server.should_exit = True
        if stopping is not None:
            await stopping()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stop())
        await server.serve([on])
        if not stop_requested.is_set():
            waiting.cancel()
