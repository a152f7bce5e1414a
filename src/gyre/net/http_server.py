"""HTTP servers of a run: a request and its answer over ASGI, a socket, and the server on it."""

import asyncio
import signal
import socket
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gyre.types.errors import ConfigError, RequestError, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

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


class ClientGone(Exception):
    """The client closed its connection before the answer was whole."""


class Exchange:
    """One HTTP request of an ASGI application, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._receive = receive
        self._send = send
        self.status: int | None = None
        """What was answered; None before that."""

    async def body(self, *, most_bytes: int, within_s: float) -> bytes:
        """The whole body; raises RequestError when it is too large, too slow or encoded."""
        if self.headers.get("content-encoding", "identity") != "identity":
            raise RequestError("content-encoding: expected none")
        declared = self.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > most_bytes:
            raise _too_large(most_bytes)
        chunks: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(within_s):
                while True:
                    event = await self._receive()
                    if event["type"] == "http.disconnect":
                        raise ClientGone
                    chunk: bytes = event.get("body", b"")
                    total += len(chunk)
                    if total > most_bytes:
                        raise _too_large(most_bytes)
                    chunks.append(chunk)
                    if not event.get("more_body", False):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError as error:
            raise RequestError(f"the body did not arrive within {within_s:g} s") from error

    async def gone(self) -> None:
        """Returns when the client has closed its connection; call it only after the body."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(
        self, status: int, kind: bytes, extra: Mapping[bytes, bytes] | None = None
    ) -> None:
        self.status = status
        headers = [(b"content-type", kind), *(extra or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def answer(
        self,
        status: int,
        data: bytes,
        kind: bytes = JSON,
        extra: Mapping[bytes, bytes] | None = None,
    ) -> None:
        length = {b"content-length": str(len(data)).encode()}
        await self.start(status, kind, length | dict(extra or {}))
        await self.finish(data)

    async def finish(self, data: bytes) -> None:
        """The last of the answer; returns when the socket has taken it.

        A server holds a write back while bytes of the one before are left, so an empty one follows.
        """
        if data:
            await self.write(data)
        await self.write(b"", last=True)


def _too_large(most_bytes: int) -> TooLarge:
    return TooLarge(f"body: expected at most {most_bytes} bytes")


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
