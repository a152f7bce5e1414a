"""Processes of a node: what /proc says of them, and handles to wait for and end them.

Rule 1: each leads a session of its own, so that all that it started can be ended with it.
Rule 2: a child's number is its own until its end is known; anyone else's is checked by its log.
"""

import asyncio
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

from gyre.aio import PipedProcess, done_within, start_process
from gyre.types.errors import ConfigError
from gyre.types.protocols import LOST, Node, NodeProcess


def holds_log(pid: int, log: Path) -> bool:
    """Whether the process lives and writes its errors there, as no other program would."""
    try:
        return Path(f"/proc/{pid}/fd/2").readlink() == log.resolve()
    except OSError:
        return False


def holder_of(log: Path) -> int | None:
    """The living process that writes its errors there, found among all processes."""
    pids = (int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())
    return next((pid for pid in pids if leads(pid) and holds_log(pid, log)), None)


def leads(pid: int) -> bool:
    """Its children may have the same log, but the session is its own."""
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def end_pid(pid: int, number: signal.Signals) -> None:
    """The signal for a process that leads a session; when it kills, for all of its group."""
    with suppress(ProcessLookupError):
        if number is signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def lock_holder(path: Path) -> int | None:
    """The process that has locked the file, if this machine knows one."""
    try:
        found, lines = path.stat(), Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        _, kind, _, _, pid, where, *_ = line.replace("-> ", "").split()
        if (kind, where) == ("FLOCK", place) and int(pid) > 0:
            return int(pid)
    return None


LISTENS = "0A"
"""A socket's state in the kernel's tables."""


def holder_of_port(port: int, proc: Path = Path("/proc")) -> str | None:
    """Its process and what that is, as people know it; None where this process cannot tell."""
    sockets = {f"socket:[{one}]" for one in _listening(port, proc)}
    if not sockets:
        return None
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        # Others' processes may not be looked at, and any may end meanwhile.
        with suppress(OSError):
            if any(str(one.readlink()) in sockets for one in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"process {folder.name} ({' '.join(words).strip()[:100]})"
    return None


def _listening(port: int, proc: Path) -> list[str]:
    """Inodes of the sockets."""
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                place, state, inode = words[1], words[3], words[9]
                if state == LISTENS and int(place.rpartition(":")[2], 16) == port:
                    found.append(inode)
    return found


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
