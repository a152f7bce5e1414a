"""A cluster of one machine, this one: processes start here and listen on its loopback address."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

from gyre.aio import PipedProcess, start_process
from gyre.cluster.procfs import end_pid, holder_of, holds_log
from gyre.types.protocols import Node

HOST = "127.0.0.1"


class LocalProcess:
    """A child of this process."""

    def __init__(self, process: PipedProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.returncode is not None

    async def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            # Else uvloop says so with an error that has no name.
            raise BrokenPipeError(f"process {self.pid} has ended")
        self._process.stdin.write(line)
        await self._process.stdin.drain()

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def lines(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line

    async def read(self, most_bytes: int) -> bytes:
        """The next of what it prints, however it is cut; nothing at its end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(most_bytes)

    async def wait(self) -> int:
        return await self._process.wait()

    async def close(self) -> None:
        await self._process.close()


class LocalNode:
    """This machine, at an address by which it is reached."""

    doors: Sequence[str] = ()

    def __init__(self, host: str = HOST) -> None:
        self.host = host

    @property
    def is_lost(self) -> bool:
        return False

    async def spawn(
        self, argv: Sequence[str], *, log: str, environment: Mapping[str, str] | None = None
    ) -> LocalProcess:
        """`environment` is put over this process's own."""
        Path(log).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Path(log).open("ab") as errors:
            process = await start_process(
                sys.executable,
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env=None if environment is None else {**os.environ, **environment},
                # A proxy, and supervisors, go on when their controller fails.
                outlives_loop=True,
            )
        return LocalProcess(process)

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        with suppress(ProcessLookupError):
            if group:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    async def is_running(self, pid: int, log: str) -> bool:
        return holds_log(pid, Path(log))

    def signal_log_holder(self, log: str, number: int) -> None:
        if (pid := holder_of(Path(log))) is not None:
            end_pid(pid, signal.Signals(number))


class LocalCluster:
    """The cluster of one machine: all its nodes are this one."""

    is_shared = True

    def __init__(self) -> None:
        self.here: Node = LocalNode()

    async def cell(self, cell: int, *, nodes: int = 1) -> Node:
        return self.here

    async def agents(self) -> Node:
        return self.here

    def signal_log_holder(self, log: str, number: int) -> None:
        self.here.signal_log_holder(log, number)

    async def close(self) -> None:
        pass
