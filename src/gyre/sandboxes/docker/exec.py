"""Runs a program in a container that runs already, and keeps what it prints."""

import asyncio
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gyre.sandboxes.docker.api import Daemon, DaemonRefusal, UpgradedConnection
from gyre.sandboxes.process import OutputCapture
from gyre.types.errors import SandboxError, wrap_errors
from gyre.types.tasks import Command

BLOCK_BYTES = 2**16
FIRST_PAUSE_S, MOST_PAUSE_S = 0.005, 0.5
"""Between two questions to a daemon that tells nothing by itself."""
BEGIN_S = 60.0
BEGIN = 'command -v -- "$1" >/dev/null 2>&1 || { echo "$0"; exit 127; }; echo "$0+"; exec "$@" 2>&1'
"""Says whether there is such a program, and becomes it, with its errors among its output.

As two streams they would come in no order.
"""
BEGAN = b"+\n"
LAST_OUTPUT_S = 60.0
SIGNALLED, LAST_SIGNAL = 128, 64
MOST_ARGUMENT_BYTES = 2**17 - 1
"""Of one argument or variable, in every Linux."""
_HEADER_BYTES = 8


class ContainerProgram:
    """One program of a container, from its start to its exit status."""

    def __init__(self, daemon: Daemon, identity: str, begun: str, kept: OutputCapture) -> None:
        """`begun`: what it prints before anything of its own, followed by how that went."""
        self._daemon = daemon
        self._id = identity
        self._begun = begun.encode()
        self._kept = kept
        self._opened: UpgradedConnection | None = None
        self._pump: threading.Thread | None = None
        self._first = b""
        self._has_said = asyncio.Event()
        self._is_cut = asyncio.Event()
        self._pid = 0

    async def begin(self) -> None:
        """It runs; SandboxError with the daemon's words if it cannot."""
        body = {"Detach": False, "Tty": False}
        path = f"/exec/{self._id}/start"
        try:
            self._opened = await asyncio.to_thread(self._daemon.open, path, body)
        except SandboxError:
            self._kept.close_pipe()
            raise
        loop = asyncio.get_running_loop()
        arguments = (self._opened, loop)
        self._pump = threading.Thread(target=self._copy, args=arguments, daemon=True)
        self._pump.start()
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._has_said.wait()
        except TimeoutError as error:
            raise SandboxError(f"it did not begin within {BEGIN_S:g} s") from error
        if self._first != self._begun + BEGAN:
            said = self._first.decode(errors="replace").strip()
            found = "no such program" if said.encode() == self._begun else said
            raise SandboxError(f"it cannot be started: {found}", retryable=False)
        self._pid = int((await self._inspect())["Pid"])

    async def wait(self) -> int:
        """Its status, or minus the signal that ended it; SandboxError if both are unknown."""
        gone = asyncio.create_task(_gone(self._pid))
        cut = asyncio.create_task(self._is_cut.wait())
        try:
            await asyncio.wait({gone, cut}, return_when=asyncio.FIRST_COMPLETED)
            # A daemon that dies prints no more, and its programs live on.
            if (await self._inspect())["Running"]:
                await gone
        finally:
            gone.cancel()
            cut.cancel()
            await asyncio.gather(gone, cut, return_exceptions=True)
        pause_s = FIRST_PAUSE_S
        while (found := await self._inspect())["Running"]:
            await asyncio.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)
        status = int(found["ExitCode"])
        is_signal = SIGNALLED < status <= SIGNALLED + LAST_SIGNAL
        return SIGNALLED - status if is_signal else status

    def finish(self) -> None:
        """Its output is complete; nothing of it runs any more."""
        if self._pump is not None:
            self._pump.join(LAST_OUTPUT_S)
        if self._opened is not None:
            self._opened.close()
        if self._pump is not None:
            self._pump.join()
        self._kept.finish()

    async def _inspect(self) -> dict[str, int]:
        with wrap_errors(SandboxError, "its container is gone", DaemonRefusal):
            found: dict[str, int] = await self._daemon.ask("GET", f"/exec/{self._id}/json")
        return found

    def _copy(self, opened: UpgradedConnection, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._first = self._carry(opened, loop)
        finally:
            self._kept.close_pipe()
            # The loop may be closed already.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._has_said.set)
                loop.call_soon_threadsafe(self._is_cut.set)

    def _carry(self, opened: UpgradedConnection, loop: asyncio.AbstractEventLoop) -> bytes:
        """Everything behind the first line goes on; that line, or all where there is none."""
        first, has_begun = b"", False
        for block in _blocks(opened):
            if has_begun:
                os.write(self._kept.pipe, block)
                continue
            first += block
            line, end, rest = first.partition(b"\n")
            if has_begun := (line + end == self._begun + BEGAN):
                self._first = first = line + end
                loop.call_soon_threadsafe(self._has_said.set)
                os.write(self._kept.pipe, rest)
        return first


def _blocks(opened: UpgradedConnection) -> Iterator[bytes]:
    """What a program prints, from the frames in which the daemon sends it."""
    while len(header := _exactly(opened, _HEADER_BYTES)) == _HEADER_BYTES:
        left = int.from_bytes(header[4:], "big")
        while left and (block := opened.read(min(left, BLOCK_BYTES))):
            yield block
            left -= len(block)


async def made(
    daemon: Daemon,
    container: str,
    command: Command,
    variables: dict[str, str],
    workdir: str,
    *,
    output: Path,
    most_bytes: int,
) -> ContainerProgram:
    """A program that does not run yet."""
    _refuse_impossible(command, variables)
    begun = secrets.token_hex(16)
    body = {
        "Cmd": ["sh", "-c", BEGIN, begun, *command.argv],
        "Env": [f"{name}={text}" for name, text in variables.items()],
        "WorkingDir": workdir,
        "AttachStdout": True,
        "AttachStderr": True,
    }
    found = await daemon.ask("POST", f"/containers/{container}/exec", body)
    return ContainerProgram(daemon, found["Id"], begun, OutputCapture(output, most_bytes))


def _refuse_impossible(command: Command, variables: dict[str, str]) -> None:
    """What no kernel starts, because a daemon says so only in what the program would print."""
    texts = [*command.argv, *(f"{name}={text}" for name, text in variables.items())]
    if not command.argv or not command.argv[0]:
        found = "no name"
    elif any("\0" in text for text in texts):
        found = "a NUL"
    elif any(len(os.fsencode(text)) > MOST_ARGUMENT_BYTES for text in texts):
        found = f"more than {MOST_ARGUMENT_BYTES} bytes"
    else:
        return
    message = f"starting {[text[:100] for text in command.argv[:1]]}: arguments with {found}"
    raise SandboxError(message, retryable=False)


def _exactly(opened: UpgradedConnection, count: int) -> bytes:
    """So many bytes, or fewer at the end."""
    data = b""
    while len(data) < count and (block := opened.read(count - len(data))):
        data += block
    return data


async def _gone(pid: int) -> None:
    """Returns when the process has ended, or at once if it is not one of this machine's."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
