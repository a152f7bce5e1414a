"""Trusted programs as processes of this machine: a session and an environment of their own.

Nothing holds a program back from the rest of the machine; this is for code that one would run.
"""

import asyncio
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gyre.sandboxes.process_tree import MARK, SandboxProcesses
from gyre.sandboxes.proxy_relay import LOOPBACK, Relay, Upstream, through
from gyre.storage import safe_dir
from gyre.types.errors import InternalError, SandboxError, wrap_errors
from gyre.types.tasks import Command, Level


def write_home(home: Path, files: Mapping[str, str]) -> None:
    """They are there, for their owner alone; SandboxError for a path that leads elsewhere.

    A program before may have left links in their way, which are not followed.
    """
    for name, text in files.items():
        try:
            safe_dir.write(home, name, text.encode())
        except ValueError as error:
            raise SandboxError(f"home of a sandbox: {error}", retryable=False) from error
        except OSError as error:
            raise SandboxError(f"home of a sandbox: {name}: {error}") from error


INHERITED = ("PATH", "LANG", "LC_ALL", "TZ")
"""All that programs see of the environment of whoever started Gyre."""
PIPE_BYTES = 2**16
LAST_OUTPUT_S = 2.0


class ProcessSandbox:
    """Programs of one execution, found again by a mark that no other execution bears."""

    def __init__(
        self,
        mark: str,
        *,
        home: Path,
        owns_descendants: bool = False,
        proxy: Upstream | None = None,
    ) -> None:
        """`proxy`: programs reach it through a relay, wherever it is by then; None: as it is."""
        self._mark = mark
        self._home = home
        self._proxy = proxy
        self._listening: socket.socket | None = None
        self._relay: Relay | None = None
        self._members = SandboxProcesses(mark, owns_descendants=owns_descendants)
        self._workspace: str | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._kept: OutputCapture | None = None

    @property
    def levels(self) -> tuple[Level, ...]:
        return ()

    def address(self, url: str) -> str:
        if self._listening is None:
            return url
        return through(url, self._listening.getsockname()[1])

    async def prepare(self, workspace: str) -> None:
        if not self._home.exists():
            self._members.is_swept = True
        with wrap_errors(SandboxError, "home of a sandbox"):
            for folder in (self._home, self._home / "tmp"):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._proxy is not None and self._listening is None:
                self._listening = socket.create_server((LOOPBACK, 0))
        self._workspace = workspace

    async def start(self, command: Command, *, output: str, most_bytes: int) -> None:
        if self._workspace is None or self._program is not None:
            raise InternalError("a sandbox runs one program at a time, after it was prepared")
        write_home(self._home, command.home)
        await self._open_relay()
        self._kept = OutputCapture(Path(output), most_bytes)
        try:
            self._program = subprocess.Popen(
                command.argv,
                cwd=self._workspace,
                env=self._environment(command),
                stdin=subprocess.DEVNULL,
                stdout=self._kept.pipe,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError) as error:
            # ValueError: a NUL in an argument; IndexError: no argument at all.
            raise SandboxError(f"starting {command.argv[:1]}: {error}", retryable=False) from error
        finally:
            self._kept.close_pipe()

    async def wait(self) -> int:
        if self._program is None:
            raise InternalError("nothing was started")
        return await asyncio.to_thread(self._program.wait)

    async def kill(self) -> None:
        program = self._program
        if program is None and not self._home.exists():
            # Nothing was ever prepared here, and looking for what was started takes long.
            return
        pid = None if program is None else program.pid
        await asyncio.to_thread(self._members.kill, reaped_elsewhere=pid)
        if program is not None:
            await asyncio.to_thread(program.wait)
        if self._kept is not None:
            await asyncio.to_thread(self._kept.finish)
        if self._relay is not None:
            await self._relay.close()
        self._program, self._kept, self._relay = None, None, None

    async def freeze(self) -> None:
        await self.kill()

    async def _open_relay(self) -> None:
        """On a copy of the socket, because its port stays the same from program to program."""
        if self._listening is not None and self._proxy is not None and self._relay is None:
            self._relay = Relay(self._listening.dup(), self._proxy)
            await self._relay.open()

    def _environment(self, command: Command) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        own = {"HOME": str(self._home), "TMPDIR": str(self._home / "tmp"), MARK: self._mark}
        return inherited | {"PWD": str(self._workspace)} | command.variables | own


class OutputCapture:
    """The beginning and the end of what a program prints, in a file; the middle is counted."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """SandboxError where the file cannot be made."""
        with wrap_errors(SandboxError, f"output to {path}"):
            self._file = path.open("wb", buffering=0)
            self._read, self.pipe = os.pipe()
            self._over = os.eventfd(0)
        self._first_bytes = most_bytes // 2
        self._last_bytes = most_bytes - self._first_bytes
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def close_pipe(self) -> None:
        """The program has its own end of it by now, or will never have."""
        os.close(self.pipe)

    def finish(self) -> None:
        """The file is complete; a pipe that somebody unknown still holds is not waited for."""
        self._thread.join(LAST_OUTPUT_S)
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._over, 1)
        self._thread.join()

    def _blocks(self) -> Iterator[bytes]:
        """What is printed, until nobody can print any more or what is there by the end is read."""
        poll = select.poll()
        for descriptor in (self._read, self._over):
            poll.register(descriptor, select.POLLIN)
        is_over = False
        while not is_over:
            ready = {descriptor for descriptor, _ in poll.poll()}
            is_over = self._over in ready
            if self._read in ready:
                if not (block := os.read(self._read, PIPE_BYTES)):
                    return
                yield block

    def _copy(self) -> None:
        room, last, left_out = self._first_bytes, bytearray(), 0
        with self._file:
            for block in self._blocks():
                self._put(block[:room])
                last += block[room:]
                room = max(0, room - len(block))
                if (over := len(last) - self._last_bytes) > 0:
                    left_out += over
                    del last[:over]
            if left_out:
                self._put(f"\n[{left_out} bytes left out]\n".encode())
            self._put(bytes(last))
        with self._closing:
            self._is_closed = True
            os.close(self._read)
            os.close(self._over)

    def _put(self, data: bytes) -> None:
        # A full disk must not stop the program that prints.
        with suppress(OSError):
            self._file.write(data)
