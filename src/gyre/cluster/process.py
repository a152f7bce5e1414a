"""Processes of a run: started with a spec, waited for until ready, ended with the run."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from gyre.cluster.local import LocalNode
from gyre.cluster.procfs import end_pid, holds_log
from gyre.types.errors import ConfigError
from gyre.types.protocols import Node, SpawnedProcess

READY = b"ready "
STOP_S = 15.0
"""How long a process may take to end after SIGTERM."""
TAIL_BYTES = 2_000
LOOK_S = 0.1
"""How often an adopted process, which is no child of this one, is looked for."""


class LoggedProcess:
    """One process with a log of its own, in a session of its own."""

    def __init__(self, name: str, process: SpawnedProcess, log: Path, node: Node) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._node = node

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], log: Path, *, at: Node | None = None
    ) -> "LoggedProcess":
        """A Python program of this installation, `-m MODULE ARGUMENT...`; here, unless it says."""
        node = LocalNode() if at is None else at
        process = await node.spawn(arguments, log=str(log))
        process.hang_up()
        return cls(name, process, log, node)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, within_s: float) -> str:
        """What it says it is ready at; ConfigError with the end of its log if it never is."""
        try:
            async with asyncio.timeout(within_s):
                async for line in self._process.lines():
                    if line.startswith(READY):
                        return line.removeprefix(READY).decode().strip()
        except TimeoutError as error:
            message = f"{self.name}: not ready within {within_s:g} s\n{self._tail()}"
            raise ConfigError(message) from error
        status = await self._process.wait()
        await self._process.close()
        raise ConfigError(f"{self.name}: ended with status {status}\n{self._tail()}".rstrip())

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """It is told to end, and made to if it does not; so is everything it started."""
        if not self._process.is_over:
            self._node.signal(self.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
            except TimeoutError:
                self._node.signal(self.pid, signal.SIGKILL)
                await self._process.wait()
        self._node.signal(self.pid, signal.SIGKILL, group=True)
        await self._process.close()

    async def kill(self) -> None:
        """It is gone, and so is everything it started."""
        self._node.signal(self.pid, signal.SIGKILL, group=True)
        await self._process.wait()
        await self._process.close()

    def _tail(self) -> str:
        return self._log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()


class AdoptedProcess:
    """A process that an earlier controller of the run started, known by its log."""

    def __init__(self, name: str, pid: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self._log = log

    async def wait(self) -> int | None:
        """Until it has ended; only its parent can know with which status."""
        while holds_log(self.pid, self._log):
            await asyncio.sleep(LOOK_S)
        return None

    async def stop(self) -> None:
        """It is told to end, and made to if it does not; so is everything it started."""
        if holds_log(self.pid, self._log):
            end_pid(self.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """It is gone, and so is everything it started."""
        if holds_log(self.pid, self._log):
            end_pid(self.pid, signal.SIGKILL)
        await self.wait()
