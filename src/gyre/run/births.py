"""Processes that a nursery forks, as the controller sees them."""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gyre.words.errors import ConfigError

STOP_S = 15.0
"""How long a process may take to end after it was told to."""
TAIL_BYTES = 2_000


class Child:
    """One process, in a session of its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name = str(pid)
        self.log: Path | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._ready: asyncio.Future[str] = loop.create_future()

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    async def ready(self, within_s: float) -> str:
        """Where it takes requests; ConfigError with the end of its log if it never does."""
        done, _ = await asyncio.wait(
            (self._ready, self._ended), timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self._ready in done:
            return self._ready.result()
        how = f"ended with status {self._ended.result()}" if done else f"not within {within_s:g} s"
        raise ConfigError(f"{self.name}: not ready: {how}\n{self._tail()}".rstrip())

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def signal(self, number: signal.Signals) -> None:
        if not self.is_over:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def stop(self, within_s: float = STOP_S) -> None:
        """It is told to end, and made to if it does not; so is everything it started."""
        self.signal(signal.SIGTERM)
        await self.end(within_s)

    async def end(self, within_s: float) -> None:
        """It has ended, by itself if it does so in time."""
        await asyncio.wait((self._ended,), timeout=within_s)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await asyncio.wait((self._ended,), timeout=within_s)

    def heard(self, answer: dict[str, Any]) -> None:
        if "ready" in answer and not self._ready.done():
            self._ready.set_result(answer["ready"])
        if "ended" in answer and not self._ended.done():
            self._ended.set_result(answer["ended"])

    def _tail(self) -> str:
        if self.log is None:
            return ""
        return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()


class Births:
    """One nursery: a module imported once, and as many processes of it as are wanted."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self._module = module
        self._process = process
        self._requests = itertools.count()
        self._asked: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, module: str, log: Path) -> "Births":
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gyre.run.nursery",
                module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        return cls(module, process)

    async def birth(
        self, name: str, arguments: Sequence[str], *, log: Path, told: str = "", lasts: bool = False
    ) -> Child:
        """A new process, which outlives this one if it lasts; `told` is seen by nobody else."""
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        request = next(self._requests)
        given: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._asked[request] = given
        asked = {
            "request": request,
            "arguments": list(arguments),
            "told": told,
            "log": str(log),
            "lasts": lasts,
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            message = f"the nursery of {self._module} has ended"
            raise ConfigError(message) from error
        child = await given
        child.name, child.log = name, log
        return child

    async def close(self) -> None:
        """No more processes; those that do not last are told to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        # Until the last of those has ended, because all of them hold the other end.
        await asyncio.wait((self._listening,), timeout=STOP_S)
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            child = self._child(answer["pid"])
            child.heard(answer)
            if "request" in answer:
                given = self._asked.pop(answer["request"])
                if not given.done():  # Whoever asked may have been cancelled meanwhile.
                    given.set_result(child)
            if "ended" in answer:
                del self._children[answer["pid"]]
        for given in self._asked.values():
            if not given.done():
                message = f"the nursery of {self._module} has ended"
                given.set_exception(ConfigError(message))

    def _child(self, pid: int) -> Child:
        """Made at its first word, because a child may speak before its parent tells of it."""
        if pid not in self._children:
            self._children[pid] = Child(pid)
        return self._children[pid]
