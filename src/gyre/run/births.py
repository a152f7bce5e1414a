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

from gyre.run.processes import Found
from gyre.words.errors import ConfigError

STOP_S = 15.0
"""How long a process may take to end after it was told to."""
TAIL_BYTES = 2_000
LOST = -1
"""In place of a status that nobody was told."""


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
    """One nursery: a module imported once, and as many processes of it as are wanted.

    It may be killed: the next birth opens another, and those who were born live on.
    """

    def __init__(self, module: str, process: asyncio.subprocess.Process, log: Path) -> None:
        """Made by `open`."""
        self._module = module
        self._log = log
        self._opening = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._requests = itertools.count()
        self._process: asyncio.subprocess.Process
        self._asked: dict[int, asyncio.Future[Child]]
        self._listening: asyncio.Task[None]
        self._listen_to(process)

    @classmethod
    async def open(cls, module: str, log: Path) -> "Births":
        return cls(module, await _nursery(module, log), log)

    @property
    def pid(self) -> int:
        """Of the nursery that there is now."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Its process has ended."""
        return self._process.returncode is not None or self._listening.done()

    async def birth(
        self, name: str, arguments: Sequence[str], *, log: Path, told: str = "", lasts: bool = False
    ) -> Child:
        """A new process, which outlives this one if it lasts; `told` is seen by nobody else."""
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with self._opening:
            if self.is_over:
                self._listen_to(await _nursery(self._module, self._log))
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
            raise self._has_ended() from error
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen_to(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._asked = process, {}
        self._listening = asyncio.create_task(self._listen(process, self._asked))
        self._tasks.append(self._listening)

    async def _listen(
        self, process: asyncio.subprocess.Process, asked: dict[int, asyncio.Future[Child]]
    ) -> None:
        """Until the process ends; then nobody else tells of the ends of its children."""
        children: dict[int, Child] = {}
        assert process.stdout is not None
        async for line in process.stdout:
            answer = json.loads(line)
            pid = answer["pid"]
            if pid not in children:
                # It may be its own first word, spoken before its parent tells of it.
                children[pid] = Child(pid)
            child = children[pid]
            child.heard(answer)
            if "request" in answer:
                given = asked.pop(answer["request"])
                if not given.done():  # Whoever asked may have been cancelled meanwhile.
                    given.set_result(child)
            if "ended" in answer:
                del children[pid]
        for given in asked.values():
            if not given.done():
                given.set_exception(self._has_ended())
        self._tasks += (asyncio.create_task(_followed(child)) for child in children.values())

    def _has_ended(self) -> ConfigError:
        return ConfigError(f"the nursery of {self._module} has ended")


async def _nursery(module: str, log: Path) -> asyncio.subprocess.Process:
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gyre.run.nursery",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )


async def _followed(child: Child) -> None:
    """The end of a process whose parent, who would have told of it, is gone."""
    if child.log is not None:
        await Found(child.name, child.pid, child.log).wait()
        child.heard({"ended": LOST})
