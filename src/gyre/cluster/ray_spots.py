"""Processes on nodes of Ray, as the controller sees them: what it asks, a steward there does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from gyre.types.errors import ConfigError
from gyre.types.ports import LOST


class RayProcess:
    """A process that a spot's steward started."""

    def __init__(self, pid: int, spot: "RayNode") -> None:
        self.pid = pid
        self._spot = spot
        self._steward = spot.steward
        self._ended = asyncio.create_task(self._wait())

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    async def tell(self, line: bytes) -> None:
        try:
            is_read = await self._steward.tell.remote(self.pid, line.decode())
        except RayError as error:
            raise BrokenPipeError(str(error)) from error
        if not is_read:
            raise BrokenPipeError(f"process {self.pid} reads no more")

    def hang_up(self) -> None:
        if not self._spot.is_lost:
            self._steward.hang_up.remote(self.pid)

    async def lines(self) -> AsyncIterator[bytes]:
        with suppress(RayError):
            while (line := await self._steward.line.remote(self.pid)) is not None:
                yield line.encode()

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def _wait(self) -> int:
        try:
            status: int = await self._steward.wait.remote(self.pid)
        except RayError:
            return LOST
        return status


class RayNode:
    """A steward on its node, and those on the other nodes of a cell that is on several."""

    def __init__(
        self, steward: Any, host: str, *, others: Sequence[Any] = (), doors: Sequence[str] = ()
    ) -> None:
        self.host = host
        self.doors = doors
        self.steward = steward
        self.others = others
        self._has_ended = False
        self._staying = asyncio.create_task(self._stay())

    @property
    def is_lost(self) -> bool:
        return self._has_ended or self._staying.done()

    async def spawn(self, argv: Sequence[str], *, log: str) -> RayProcess:
        if self.is_lost:
            raise ConfigError(f"node {self.host}: lost")
        try:
            found = await self.steward.spawn.remote(list(argv), log, str(Path.cwd()))
        except RayError as error:
            raise ConfigError(f"node {self.host}: lost: {first_line(error)}") from error
        if isinstance(found, str):
            raise ConfigError(f"node {self.host}: cannot start {argv[1]}: {found}")
        return RayProcess(found, self)

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        if not self.is_lost:
            self.steward.signal.remote(pid, int(number), group)

    async def is_running(self, pid: int, log: str) -> bool:
        if self.is_lost:
            return False
        try:
            found: bool = await self.steward.holds.remote(pid, log)
        except RayError:
            return False
        return found

    def signal_log_holder(self, log: str, number: int) -> None:
        if not self.is_lost:
            self.steward.order.remote(log, int(number))

    def end(self) -> None:
        """Nothing can be started there any more, and nobody is asked anything.

        Whoever asks an actor after the last of them begins a cluster of one's own with it.
        """
        self._has_ended = True
        for steward in (self.steward, *self.others):
            ray.kill(steward)

    async def _stay(self) -> None:
        """Until one of them is gone, because then the cell is."""
        staying = [asyncio.ensure_future(_stay(one)) for one in (self.steward, *self.others)]
        await asyncio.wait(staying, return_when=asyncio.FIRST_COMPLETED)
        for one in staying:
            one.cancel()


async def _stay(steward: Any) -> None:
    with suppress(RayError):
        await steward.stay.remote()


def first_line(error: BaseException) -> str:
    """The first line of what Ray says, which has many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
