"""A program on another node as if it were a child here: what it hears and says passes through.

    python -m gyre.cluster.far HOST:PORT KEYFILE ARGUMENT...

There is a door on that node, which starts Python with the arguments for whoever shows the key.
What it reports as errors goes into the file that this process's errors go into. Its input ends with
this process, and this process ends with its output.
"""

import asyncio
import hmac
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from threading import Thread

from gyre.cluster.addresses import interface_of
from gyre.cluster.local import LocalNode, LocalProcess
from gyre.types.errors import ConfigError

PIECE_BYTES = 65_536
ASK_S = 10.0
"""How long whoever knocks may take to say what for."""
END_S = 5.0
"""How long a program may take to end after nothing more comes from its driver."""


class NodeAgentServer:
    """Starts programs for drivers on other nodes, which show the key that a file holds."""

    def __init__(self, host: str, key_file: Path) -> None:
        self._host = host
        self._key_file = key_file
        self._here = LocalNode(host)
        self._server: asyncio.Server
        self._guests: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """The port it is at."""
        self._server = await asyncio.start_server(self._greet, self._host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Nobody is let in any more, and all who were have left."""
        self._server.close()
        await asyncio.gather(*self._guests)
        await self._server.wait_closed()

    def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = asyncio.create_task(self._let_in(reader, writer))
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Whoever knocks may say anything, or nothing.
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
            # There it is looked for, because the driver only hears an end.
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


async def _inward(reader: asyncio.StreamReader, process: LocalProcess) -> None:
    """What the driver says; once it says nothing more, the program has a while to end."""
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            await process.tell(piece)
    process.hang_up()
    await asyncio.sleep(END_S)
    LocalNode().signal(process.pid, SIGKILL, group=True)


def _outward(there: socket.socket) -> None:
    with suppress(OSError):
        while piece := os.read(0, PIECE_BYTES):
            there.sendall(piece)
        there.shutdown(socket.SHUT_WR)


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
        Thread(target=_outward, args=(there,), daemon=True).start()
        with suppress(OSError):
            while piece := there.recv(PIECE_BYTES):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
