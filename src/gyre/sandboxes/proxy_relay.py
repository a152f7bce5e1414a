"""The socket inside a sandbox that relays to the proxy."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from gyre.aio import WaitTimer
from gyre.sandboxes.local import netns_script
from gyre.types.errors import SandboxError, wrap_errors

ENTER_S = 60.0
"""How long a process may take to enter a namespace and come back with a socket."""


def listen_inside(pid: int, port: int) -> socket.socket:
    """Bound to the loopback of that process's network namespace; SandboxError if it cannot be."""
    with wrap_errors(SandboxError, f"network of process {pid}"):
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return netns_script.bound_by_thread(namespace, port)
    except PermissionError:
        return _bound_by_child(namespace, port)
    except OSError as error:
        raise SandboxError(f"listening in the network of process {pid}: {error}") from error
    finally:
        os.close(namespace)


def _bound_by_child(namespace: int, port: int) -> socket.socket:
    """Who is not root enters with a whole process, because a user namespace asks for that."""
    here, there = socket.socketpair()
    with here, there:
        numbers = [str(number) for number in (namespace, port, there.fileno())]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(Path(netns_script.__file__)), *numbers],
                pass_fds=(namespace, there.fileno()),
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ENTER_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            message = f"listening inside a sandbox: expected a socket within {ENTER_S:g} s"
            raise SandboxError(message) from error
        there.close()
        _, received, _, _ = socket.recv_fds(here, 1, 1)
    if not received:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"listening inside a sandbox: expected a socket, found: {said}")
    return socket.socket(fileno=received[0])


MOST_CONNECTIONS = 256
"""At once; further ones wait, so that a program cannot use up the descriptors of its supervisor."""
BLOCK_BYTES = 2**16
HOLD_S = 300.0
"""How long a connection is held for a proxy that is being started again."""
CONNECT_S = 5.0
"""How long it may take to answer a connection, before it is asked for anew."""
PAUSE_S = 0.1
LOOPBACK = "127.0.0.1"

Address = Callable[[], tuple[str, int]]
"""Host and port of the proxy, asked for each connection, because it may have moved."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[str, int], Awaitable[Streams]]


def through(url: str, port: int) -> str:
    """The proxy's address, for whoever reaches it through a relay that listens on this port."""
    parts = urlsplit(url)
    if parts.scheme != "http":
        message = f"the proxy of a sandbox: expected an http:// address, found {url}"
        raise SandboxError(message, retryable=False)
    return parts._replace(netloc=f"{LOOPBACK}:{port}").geturl()


class Upstream:
    """The proxy as programs of a sandbox reach it, and how long they waited for it."""

    def __init__(
        self,
        address: Address,
        *,
        hold_s: float = HOLD_S,
        connect_s: float = CONNECT_S,
        connect: Connect = asyncio.open_connection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._connect = connect
        self._hold_s = hold_s
        self._connect_s = connect_s
        self._clock = clock
        self._waits = WaitTimer()

    @property
    def waited_s(self) -> float:
        """Seconds in which somebody waited for it, which nobody is charged (SPEC 6.1)."""
        return self._waits.total_s(self._clock())

    async def reached(self, is_wanted: Callable[[], bool]) -> Streams | None:
        """A connection as soon as it is there; None if it stays away, or nobody wants it now."""
        until = self._clock() + self._hold_s
        if (found := await self._tried()) is not None:
            return found
        # Not before, because whoever connects again and again would buy himself time.
        self._waits.begin(self._clock())
        try:
            while is_wanted() and self._clock() <= until:
                await asyncio.sleep(PAUSE_S)
                if (found := await self._tried()) is not None:
                    return found
            return None
        finally:
            self._waits.end(self._clock())

    async def _tried(self) -> Streams | None:
        try:
            # One that hangs would otherwise be waited for although another took its place.
            async with asyncio.timeout(self._connect_s):
                return await self._connect(*self._address())
        except OSError:
            return None


class Relay:
    """Whoever connects to the socket talks to the proxy, and can talk to nobody else.

    While there is no proxy, connections are taken and held, so that programs see no error.
    """

    def __init__(self, listening: socket.socket, upstream: Upstream) -> None:
        self._listening = listening
        self._upstream = upstream
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)
        self._server: asyncio.Server | None = None
        self._carried: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._listening.setblocking(False)
        self._server = await asyncio.start_server(self._met, sock=self._listening)

    async def close(self) -> None:
        """No connection is left."""
        if self._server is not None:
            self._server.close()
        else:
            self._listening.close()
        carried = list(self._carried)
        for task in carried:
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carried.add(task)
        try:
            async with self._free:
                await self._carry(reader, writer)
        # Closing the relay ends what it carries, which is nobody's failure.
        except asyncio.CancelledError:
            pass
        finally:
            self._carried.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached = await self._upstream.reached(lambda: not writer.is_closing())
        if reached is None:
            return
        from_proxy, to_proxy = reached
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, to_proxy))
                both.create_task(_pump(from_proxy, writer))
        # One side is gone, and with it what the other had to say.
        except* OSError:
            pass
        finally:
            to_proxy.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything that comes goes on, and so does the end."""
    while block := await reader.read(BLOCK_BYTES):
        writer.write(block)
        await writer.drain()
    writer.write_eof()
