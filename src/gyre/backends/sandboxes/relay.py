"""Bytes between a listening socket and wherever the proxy is reached at that moment."""

import asyncio
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from gyre.words.errors import SandboxError

MOST_CONNECTIONS = 256
"""At once; further ones wait, so that a program cannot use up the descriptors of its supervisor."""
BLOCK_BYTES = 2**16
HOLD_S = 300.0
"""How long a connection is held for a proxy that is being started again."""
PAUSE_S = 0.1
LOOPBACK = "127.0.0.1"

Address = Callable[[], tuple[str, int]]
"""Host and port of the proxy, asked for each connection, because it may have moved."""


def through(url: str, port: int) -> str:
    """The proxy's address, for whoever reaches it through a relay that listens on this port."""
    parts = urlsplit(url)
    if parts.scheme != "http":
        message = f"the proxy of a sandbox: expected an http:// address, found {url}"
        raise SandboxError(message, retryable=False)
    return parts._replace(netloc=f"{LOOPBACK}:{port}").geturl()


class Relay:
    """Whoever connects to the socket talks to the proxy, and can talk to nobody else.

    While there is no proxy, connections are taken and held, so that programs see no error.
    """

    def __init__(
        self, listening: socket.socket, address: Address, *, hold_s: float = HOLD_S
    ) -> None:
        self._listening = listening
        self._address = address
        self._hold_s = hold_s
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
        reached = await self._reach(writer)
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

    async def _reach(
        self, met: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The proxy as soon as it is there; None if it stays away, or nobody waits any more."""
        until = asyncio.get_running_loop().time() + self._hold_s
        while True:
            try:
                return await asyncio.open_connection(*self._address())
            except OSError:
                if met.is_closing() or asyncio.get_running_loop().time() > until:
                    return None
                await asyncio.sleep(PAUSE_S)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything that comes goes on, and so does the end."""
    while block := await reader.read(BLOCK_BYTES):
        writer.write(block)
        await writer.drain()
    writer.write_eof()
