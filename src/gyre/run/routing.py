"""The route table: every running execution has its engine while that is ready, and else none."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gyre.run.proxied import ProxyClient
from gyre.words.ids import EngineName, ExecutionId
from gyre.words.shards import shard_of


class RouteTable:
    """What a shard of the proxy was told last, and what it should be told (SPEC 2.3)."""

    def __init__(
        self, proxy: ProxyClient, name_of: Callable[[int], EngineName], *, version: int = 0
    ) -> None:
        self._proxy = proxy
        self._name_of = name_of
        self._version = version
        self._wanted: dict[ExecutionId, EngineName | None] = {}
        self._told: dict[ExecutionId, EngineName | None] = {}
        self._life = 0
        """Of the proxy; another begins with `again`."""
        self._changed = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self.num_moved = 0

    def want(self, seats: Mapping[ExecutionId, int], is_ready: Callable[[int], bool]) -> None:
        """Engines of all running executions; a flush follows if anything is another."""
        ready = {engine: is_ready(engine) for engine in set(seats.values())}
        self._wanted = {
            execution: self._name_of(engine) if ready[engine] else None
            for execution, engine in seats.items()
        }
        if self._changes():
            self._flushed.clear()
            self._changed.set()

    def again(self) -> None:
        """The proxy is another process, which was told nothing yet."""
        self._life += 1
        self._told.clear()
        if self._changes():
            self._flushed.clear()
            self._changed.set()

    async def flushed(self) -> None:
        """The proxy obeys what is wanted now."""
        await self._flushed.wait()

    async def work(self) -> None:
        """Tells the proxy, one order at a time, for as long as the run lasts."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while changes := self._changes():
                self._version += 1
                life = self._life
                self.num_moved += await self._proxy.assign(self._version, changes)
                if life != self._life:
                    continue
                for execution, engine in changes.items():
                    if execution in self._wanted:
                        self._told[execution] = engine
                    else:
                        self._told.pop(execution, None)
            self._flushed.set()

    def _changes(self) -> dict[ExecutionId, EngineName | None]:
        found = {
            execution: engine
            for execution, engine in self._wanted.items()
            if self._told.get(execution) != engine
        }
        return found | {one: None for one in self._told if one not in self._wanted}


class RouteTables:
    """Those of all shards; each is told by itself, so that none waits for another."""

    def __init__(
        self,
        shards: Sequence[ProxyClient],
        name_of: Callable[[int], EngineName],
        *,
        version: int = 0,
    ) -> None:
        self._tables = [RouteTable(one, name_of, version=version) for one in shards]

    @property
    def num_moved(self) -> int:
        return sum(one.num_moved for one in self._tables)

    def want(self, seats: Mapping[ExecutionId, int], is_ready: Callable[[int], bool]) -> None:
        """Engines of all running executions; a flush follows if anything is another."""
        if len(self._tables) == 1:
            self._tables[0].want(seats, is_ready)
            return
        parts: list[dict[ExecutionId, int]] = [{} for _ in self._tables]
        for execution, engine in seats.items():
            parts[shard_of(execution, len(parts))][execution] = engine
        for table, part in zip(self._tables, parts, strict=True):
            table.want(part, is_ready)

    def again(self, shard: int) -> None:
        """The shard is another process, which was told nothing yet."""
        self._tables[shard].again()

    async def flushed(self) -> None:
        """All of them obey what is wanted now."""
        for table in self._tables:
            await table.flushed()

    async def work(self) -> None:
        """Tells them, for as long as the run lasts."""
        async with asyncio.TaskGroup() as group:
            for table in self._tables:
                group.create_task(table.work())
