"""Handles of processes that run on a node: spawned there, forked there, or adopted.

Rule 1: each leads a session of its own, so that all that it started can be ended with it.
Rule 2: a child's number is its own until its end is known; anyone else's is checked by its log.
"""

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path

from gyre.aio import done_within
from gyre.cluster.local import LocalNode
from gyre.cluster.procfs import holds_log
from gyre.types.errors import ConfigError
from gyre.types.protocols import LOST, Node, NodeProcess

READY = b"ready "
STOP_S = 15.0
"""How long a process may take to end after SIGTERM."""
TAIL_BYTES = 2_000
LOOK_S = 0.1
"""How often a process that is no child, and whose end is reported by none, is looked for."""


class LoggedProcess(ABC):
    """A process on a node, and the file that it alone writes its errors to."""

    def __init__(self, name: str, pid: int, log: Path, node: Node) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self.node = node

    @property
    @abstractmethod
    def is_over(self) -> bool: ...

    @abstractmethod
    async def wait(self) -> int:
        """Its status, once it has ended; LOST where that is unknown."""

    def signal(self, number: int, *, group: bool = False) -> None:
        """Nothing happens if it has ended; the rest of its group may run on, and gets it then."""
        if group or not self.is_over:
            self.node.signal(self.pid, number, group=group)

    async def stop(self, within_s: float = STOP_S) -> None:
        """Ends it by SIGTERM, and after `within_s` by SIGKILL, with everything it started."""
        self.signal(signal.SIGTERM)
        await self.end(within_s)

    async def end(self, within_s: float) -> None:
        """It has ended, by itself if it does so in time, and so has everything it started."""
        await done_within(within_s, self.wait())
        self.signal(signal.SIGKILL, group=True)
        await done_within(within_s, self.wait())

    async def kill(self) -> None:
        """It is gone, and so is everything it started."""
        self.signal(signal.SIGKILL, group=True)
        await self.wait()

    def log_tail(self) -> str:
        """Nothing if it has not come to open its log."""
        text = self.log.read_bytes()[-TAIL_BYTES:] if self.log.exists() else b""
        return text.decode(errors="replace").strip()

    async def _wait_ready(self, address: Coroutine[None, None, str | None], within_s: float) -> str:
        """The address; ConfigError with the end of its log if there is none, or not in time."""
        try:
            async with asyncio.timeout(within_s):
                if (found := await address) is not None:
                    return found
                problem = f"ended with status {await self.wait()}"
        except TimeoutError:
            problem = f"not ready within {within_s:g} s"
        raise ConfigError(f"{self.name}: {problem}\n{self.log_tail()}".rstrip())

    async def _wait_gone(self) -> int:
        while await self.node.is_running(self.pid, str(self.log)):
            await asyncio.sleep(LOOK_S)
        return LOST


class SpawnedProcess(LoggedProcess):
    """A child that a node started, and that prints where it takes requests."""

    def __init__(self, name: str, process: NodeProcess, log: Path, node: Node) -> None:
        super().__init__(name, process.pid, log, node)
        self._process = process

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], log: Path, *, at: Node | None = None
    ) -> "SpawnedProcess":
        """A Python program of this installation, `-m MODULE ARGUMENT...`; here, unless it says."""
        node = LocalNode() if at is None else at
        process = await node.spawn(arguments, log=str(log))
        process.hang_up()
        return cls(name, process, log, node)

    @property
    def is_over(self) -> bool:
        return self._process.is_over

    async def ready(self, within_s: float) -> str:
        """Where it takes requests; ConfigError with the end of its log if it never does."""
        return await self._wait_ready(self._printed_address(), within_s)

    async def wait(self) -> int:
        """Its status, once it has ended and its pipes are closed."""
        status = await self._process.wait()
        await self._process.close()
        return status

    async def _printed_address(self) -> str | None:
        async for line in self._process.lines():
            if line.startswith(READY):
                return line.removeprefix(READY).decode().strip()
        return None


class ForkedProcess(LoggedProcess):
    """A child of a fork server, which reports for it."""

    def __init__(self, name: str, pid: int, log: Path, node: Node) -> None:
        super().__init__(name, pid, log, node)
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._ready: asyncio.Future[str] = loop.create_future()

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    async def ready(self, within_s: float) -> str:
        """Where it takes requests; ConfigError with the end of its log if it never does."""
        return await self._wait_ready(self._reported_address(), within_s)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def report_ready(self, address: str) -> None:
        if not self._ready.done():
            self._ready.set_result(address)

    def report_end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    async def watch(self) -> None:
        """Looks for its end, which its fork server does not live to report."""
        self.report_end(await self._wait_gone())

    async def _reported_address(self) -> str | None:
        done, _ = await asyncio.wait(
            (self._ready, self._ended), return_when=asyncio.FIRST_COMPLETED
        )
        return self._ready.result() if self._ready in done else None


class AdoptedProcess(LoggedProcess):
    """A process of this machine that an earlier controller of the run started."""

    def __init__(self, name: str, pid: int, log: Path) -> None:
        super().__init__(name, pid, log, LocalNode())

    @property
    def is_over(self) -> bool:
        return not holds_log(self.pid, self.log)

    async def wait(self) -> int:
        """LOST once it has ended, because only its parent can know with which status."""
        return await self._wait_gone()

    def signal(self, number: int, *, group: bool = False) -> None:
        # Once it has ended its number, and its group's, may be another's.
        if not self.is_over:
            super().signal(number, group=group)
