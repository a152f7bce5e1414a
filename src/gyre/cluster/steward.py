"""Starts the programs of a run on one node of a cluster, for a controller on another."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from gyre.cluster.far import NodeAgentServer
from gyre.cluster.local import LocalNode, LocalProcess


class NodeAgent:
    """One node, or the part of it that is kept for a cell; all that it hears and says is plain.

    It lives in an actor and has nothing that a restart would need: whoever it started for a cell
    ends with it, and executions go on without it.
    """

    def __init__(self) -> None:
        self._here = LocalNode()
        self._started: dict[int, LocalProcess] = {}
        self._lines: dict[int, AsyncIterator[bytes]] = {}
        self._door: NodeAgentServer

    async def sees(self, path: str, text: str) -> bool:
        """Whether the file is there and says this."""
        try:
            return await asyncio.to_thread(Path(path).read_text) == text
        except OSError:
            return False

    async def door(self, host: str, key_file: str) -> int:
        """The port of a door through which a cell's driver starts its ranks here."""
        self._door = NodeAgentServer(host, Path(key_file))
        return await self._door.open()

    async def stay(self) -> None:
        """Whoever waits for it hears of this actor's end, and of nothing else."""
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
        """Whether somebody still reads there."""
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

    async def signal(self, pid: int, number: int, group: bool) -> None:
        self._here.signal(pid, number, group=group)

    async def holds(self, pid: int, log: str) -> bool:
        return await self._here.is_running(pid, log)

    async def order(self, log: str, number: int) -> None:
        self._here.signal_log_holder(log, number)
