"""A socket and a server for an ASGI application, which runs until its process is told to stop."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from gyre.words.errors import ConfigError

STOP_S = 30
"""How long requests in flight may take to end once the process is told to stop."""


def listener(host: str, port: int, *, send_bytes: int | None = None) -> socket.socket:
    """A socket that takes connections; port 0 picks a free one.

    `send_bytes` is how much of a reply the kernel takes before the client has any.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        message = f"cannot listen on {host}:{port}: {error}"
        raise ConfigError(message) from error
    made.listen(2048)
    return made


class _Server(uvicorn.Server):
    """A server that leaves signals to its owner."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Callable[..., Any]) -> _Server:
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        server_header=False,
        date_header=False,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_S,
    )
    return _Server(config)


def told_to_stop() -> asyncio.Event:
    """Set by SIGINT or SIGTERM from now on."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    return told


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
    told = told_to_stop()
    # After that, because whoever is told that it has started may tell it to stop at once.
    on_start()

    async def stop() -> None:
        await told.wait()
        server.should_exit = True
        if stopping is not None:
            await stopping()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stop())
        await server.serve([on])
        if not told.is_set():
            waiting.cancel()
