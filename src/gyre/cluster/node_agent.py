"""Starts processes on another node for a remote parent.

A program on another node as if it were a child here: its input and output pass through.

python -m gyre.cluster.node_agent HOST:PORT KEYFILE ARGUMENT...

A server on that node starts Python with the arguments for a client that shows the key.
What it reports as errors goes into the file that this process's errors go into. Its input ends with
this process, and this process ends with its output.
"""

import asyncio
import fcntl
import hmac
import json
import os
import select
import socket
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from signal import SIGKILL
from threading import Thread
from typing import Self

from gyre.cluster.process import LocalNode, LocalProcess
from gyre.types.errors import ConfigError

SIOCGIFADDR = 0x8915
"""Asks the kernel for an interface's address."""
LOOPBACK = "lo"
"""Has all addresses that begin with 127."""


def interface_of(host: str) -> str:
    """Its name; ConfigError if none has this address."""
    if host.startswith("127."):
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # One that has no address.
            if socket.inet_ntoa(answer[20:24]) == host:
                return name
    raise ConfigError(f"no network interface of this machine has the address {host}")


PIECE_BYTES = 65_536
ASK_S = 10.0
"""How long a client may take to send its request."""
END_S = 5.0
"""How long a program may take to end after nothing more comes from its driver."""


class DriverConnections:
    """Starts programs for drivers on other nodes, which show the key that a file holds."""

    def __init__(self, host: str, key_file: Path) -> None:
        self._host = host
        self._key_file = key_file
        self._here = LocalNode(host)
        self._guests: set[asyncio.Task[None]] = set()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._guests)

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = asyncio.create_task(self._let_in(reader, writer))
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A client may send anything, or nothing.
            with suppress(OSError, ValueError, TypeError, KeyError, TimeoutError):
                async with asyncio.timeout(ASK_S):
                    asked = json.loads(await reader.readline())
                key = self._key_file.read_text().strip()
                if hmac.compare_digest(str(asked["key"]).encode(), key.encode()):
                    await self._serve(asked["argv"], asked["log"], reader, writer)
        finally:
            writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _serve(
        self,
        argv: Sequence[str],
        log: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            around = {"GLOO_SOCKET_IFNAME": interface_of(self._host)}
            process = await self._here.spawn(argv, log=log, environment=around)
        except (ConfigError, OSError) as error:
            # There it is looked for, because the driver only learns of an end.
            with Path(log).open("a") as file:
                file.write(f"gyre far: {self._host}: {error}\n")
            return
        inward = asyncio.create_task(_inward(reader, process))
        try:
            while piece := await process.read(PIECE_BYTES):
                writer.write(piece)
                await writer.drain()
        finally:
            inward.cancel()
            await asyncio.gather(inward, return_exceptions=True)
            process.hang_up()
            self._here.signal(process.pid, SIGKILL, group=True)
            await process.wait()
            await process.close()


class NodeAgentServer:
    """The port at which drivers on other nodes have programs started here."""

    def __init__(self, server: asyncio.Server, connections: DriverConnections) -> None:
        self._server = server
        self._connections = connections

    @classmethod
    async def open(cls, host: str, key_file: Path) -> Self:
        connections = DriverConnections(host, key_file)
        return cls(await asyncio.start_server(connections.take, host, 0), connections)

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Takes no more clients, and waits until those it has are gone."""
        self._server.close()
        await self._connections.wait_closed()
        await self._server.wait_closed()


async def _inward(reader: asyncio.StreamReader, process: LocalProcess) -> None:
    """What the driver says; once it says nothing more, the program has a while to end."""
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            await process.tell(piece)
    process.hang_up()
    await asyncio.sleep(END_S)
    LocalNode().signal(process.pid, SIGKILL, group=True)


class _Outward:
    """Copies this process's input there, in a thread, until it ends or is closed."""

    def __init__(self, there: socket.socket) -> None:
        self._there = there
        self._closing, self._close = os.pipe()
        self._thread = Thread(target=self._copy, name="outward", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._close)
        # A thread that is in the middle of saying something is not read from any more.
        with suppress(OSError):
            self._there.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        os.close(self._closing)

    def _copy(self) -> None:
        with suppress(OSError):
            while True:
                ready, _, _ = select.select([0, self._closing], [], [])
                if self._closing in ready:
                    return
                if not (piece := os.read(0, PIECE_BYTES)):
                    break
                self._there.sendall(piece)
            self._there.shutdown(socket.SHUT_WR)


def main(arguments: Sequence[str]) -> int:
    place, key_file, *argv = arguments
    host, _, port = place.rpartition(":")
    log = str(Path("/proc/self/fd/2").readlink())
    asked = {"key": Path(key_file).read_text().strip(), "argv": argv, "log": log}
    try:
        there = socket.create_connection((host, int(port)), timeout=ASK_S)
    except OSError as error:
        sys.stderr.write(f"gyre far: {place}: {error}\n")
        return 1
    with there:
        there.settimeout(None)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        there.sendall(json.dumps(asked).encode() + b"\n")
        with closing(_Outward(there)), suppress(OSError):
            while piece := there.recv(PIECE_BYTES):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
    return 0


class NodeAgent:
    """An actor on one node, or on a cell's part of it, that starts and signals processes there.

    Its arguments and results are plain values. It has no state that a restart would need: ranks
    that it started for a cell end with it, and executions go on without it.
    """

    def __init__(self) -> None:
        self._here = LocalNode()
        self._started: dict[int, LocalProcess] = {}
        self._lines: dict[int, AsyncIterator[bytes]] = {}
        self._doors: list[NodeAgentServer] = []

    async def sees(self, path: str, text: str) -> bool:
        """Whether the file is there and says this."""
        try:
            return await asyncio.to_thread(Path(path).read_text) == text
        except OSError:
            return False

    async def door(self, host: str, key_file: str) -> int:
        """The port of a server through which a cell's driver starts its ranks here."""
        door = await NodeAgentServer.open(host, Path(key_file))
        self._doors.append(door)
        return door.port

    async def stay(self) -> None:
        """Never returns: a call of it fails when this actor ends."""
        await asyncio.Event().wait()

    async def spawn(self, argv: Sequence[str], log: str, folder: str) -> int | str:
        """The process id, or why there is none."""
        try:
            # Paths of a run may be relative to where its controller was started.
            os.chdir(folder)
            process = await self._here.spawn(argv, log=log)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        self._started[process.pid] = process
        self._lines[process.pid] = process.lines()
        return process.pid

    async def tell(self, pid: int, line: str) -> bool:
        """Whether the process still reads its input."""
        try:
            await self._started[pid].tell(line.encode())
        except OSError:
            return False
        return True

    async def hang_up(self, pid: int) -> None:
        self._started[pid].hang_up()

    async def line(self, pid: int) -> str | None:
        """The next one that it prints; None behind the last."""
        found = await anext(self._lines[pid], None)
        return None if found is None else found.decode(errors="replace")

    async def wait(self, pid: int) -> int:
        return await self._started[pid].wait()

    async def close(self, pid: int) -> None:
        """It has ended, and is forgotten."""
        self._lines.pop(pid, None)
        if (process := self._started.pop(pid, None)) is not None:
            await process.close()

    async def signal(self, pid: int, number: int, group: bool) -> None:
        self._here.signal(pid, number, group=group)

    async def holds(self, pid: int, log: str) -> bool:
        return await self._here.is_running(pid, log)

    async def order(self, log: str, number: int) -> None:
        self._here.signal_log_holder(log, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
