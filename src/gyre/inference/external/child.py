"""An engine's server as a child of this process: started, waited for, ended with all its own."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gyre.types.errors import ConfigError, EngineError

POLL_S = 0.5
"""Pause between two looks at a server that starts."""
END_S = 5.0
"""How long it may take to end after it was told to."""
GUARD = Path(__file__).with_name("guard.py")


class ServerChild:
    """One server with all its workers, in a session of their own; they end with this process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, folder: Path) -> None:
        """Made by `start`."""
        self._name = name
        self._process = process
        self._folder = folder

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], variables: Mapping[str, str], *, folder: Path
    ) -> "ServerChild":
        """Its words go where this process writes its own log; its folder goes with it."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(GUARD), str(folder)),
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                env=os.environ | variables,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"engine {name}: {command[0]}: {error}") from error
        return cls(name, process, folder)

    @property
    def is_over(self) -> bool:
        return self._process.returncode is not None

    async def wait_answering(self, answers: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Returns once it answers; EngineError if it ends before, or takes longer."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if self.is_over:
                        raise self._ended()
                    with suppress(EngineError):
                        if await answers():
                            return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            message = f"engine {self._name}: its server did not answer within {within_s:g} s"
            raise EngineError(message) from error

    def _ended(self) -> EngineError:
        hint = "cells.server.python names the environment that it is installed in"
        message = f"engine {self._name}: its server ended while starting, as told above; {hint}"
        return EngineError(message)

    async def wait(self) -> None:
        """Returns when it has ended."""
        await self._process.wait()

    async def end(self) -> None:
        """Nothing of it is left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        # It is gone already, unless whoever guards it was killed as well.
        shutil.rmtree(self._folder, ignore_errors=True)
