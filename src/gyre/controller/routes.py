"""Route tables of all proxy shards, sent when they change."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TypeVar

from gyre.proxy.client import ProxyClient
from gyre.types.ids import EngineName, ExecutionId, shard_of

K = TypeVar("K")
V = TypeVar("V")


class ChangeTrackingDict(MutableMapping[K, V]):
    """A dict whose one reader gets each changed key once, from `changed`."""

    def __init__(self) -> None:
        self._held: dict[K, V] = {}
        self._changed: dict[K, None] = {}

    def __getitem__(self, key: K) -> V:
        return self._held[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._held[key] = value
        self._changed[key] = None

    def __delitem__(self, key: K) -> None:
        del self._held[key]
        self._changed[key] = None

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def changed(self) -> list[K]:
        """Keys in the order in which they first changed; from now on there are none."""
        found = list(self._changed)
        self._changed.clear()
        return found


class RouteTable:
    """The routes that a proxy shard was sent last, and those it should have (SPEC 2.3).

    Only what changes is looked at, so that an event costs the same however many executions run.
    """

    def __init__(
        self, proxy: ProxyClient, names: Sequence[EngineName], *, version: int = 0
    ) -> None:
        """`names` are those of engines, by number, for as long as the run lasts."""
        self._proxy = proxy
        self._names = names
        self._version = version
        self._assignments: dict[ExecutionId, int] = {}
        self._at: dict[int, dict[ExecutionId, None]] = {}
        """Executions of every engine that has any."""
        self._ready: dict[int, bool] = {}
        """The same engines, as they were seen last."""
        self._wanted: dict[ExecutionId, EngineName | None] = {}
        self._sent: dict[ExecutionId, EngineName | None] = {}
        self._unsent: dict[ExecutionId, None] = {}
        """Executions whose wanted route is another than the one that was sent."""
        self._life = 0
        """Of the proxy; another begins with `again`."""
        self._changed = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self.num_moved = 0

    def want(
        self,
        assignments: Mapping[ExecutionId, int | None],
        is_ready: Callable[[int], bool],
        *,
        turned: bool = False,
    ) -> None:
        """Engines of executions that have begun, moved or, with None, ended.

        `turned` says that engines may be ready that were not, or no more. A flush follows if any
        route is another than the one that was sent.
        """
        changed = dict.fromkeys(assignments)
        for execution, engine in assignments.items():
            self._assign(execution, engine, is_ready)
        if turned:
            for engine in self._turned(is_ready):
                changed |= self._at[engine]
        for execution in changed:
            self._want(execution)
        self._wake()

    def again(self) -> None:
        """The proxy is another process, which has no routes yet."""
        self._life += 1
        self._sent.clear()
        self._unsent = {one: None for one, engine in self._wanted.items() if engine is not None}
        self._wake()

    async def flushed(self) -> None:
        """The proxy has the routes that are wanted now."""
        await self._flushed.wait()

    async def work(self) -> None:
        """Sends routes to the proxy, one request at a time, for as long as the run lasts."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._unsent:
                changes = {execution: self._wanted.get(execution) for execution in self._unsent}
                self._version += 1
                life = self._life
                self.num_moved += await self._proxy.assign(self._version, changes)
                if life == self._life:
                    self._note_sent(changes)
            self._flushed.set()

    def _note_sent(self, changes: Mapping[ExecutionId, EngineName | None]) -> None:
        for execution, engine in changes.items():
            if engine is None and execution not in self._wanted:
                self._sent.pop(execution, None)
            else:
                self._sent[execution] = engine
            self._compare(execution)

    def _assign(
        self, execution: ExecutionId, engine: int | None, is_ready: Callable[[int], bool]
    ) -> None:
        before = self._assignments.pop(execution, None)
        if before is not None:
            del self._at[before][execution]
            if not self._at[before]:
                del self._at[before], self._ready[before]
        if engine is not None:
            self._assignments[execution] = engine
            self._at.setdefault(engine, {})[execution] = None
            self._ready.setdefault(engine, is_ready(engine))

    def _turned(self, is_ready: Callable[[int], bool]) -> list[int]:
        """Engines that are not as they were seen last."""
        found = [
            engine for engine, was_ready in self._ready.items() if is_ready(engine) != was_ready
        ]
        for engine in found:
            self._ready[engine] = is_ready(engine)
        return found

    def _want(self, execution: ExecutionId) -> None:
        engine = self._assignments.get(execution)
        if engine is None:
            self._wanted.pop(execution, None)
        else:
            self._wanted[execution] = self._names[engine] if self._ready[engine] else None
        self._compare(execution)

    def _compare(self, execution: ExecutionId) -> None:
        """An execution that was never sent needs no request to have no engine."""
        sent, wanted = self._sent.get(execution), self._wanted.get(execution)
        has_ended = execution in self._sent and execution not in self._wanted
        if sent != wanted or has_ended:
            self._unsent[execution] = None
        else:
            self._unsent.pop(execution, None)

    def _wake(self) -> None:
        if self._unsent:
            self._flushed.clear()
            self._changed.set()


class RouteTables:
    """The route tables of all shards; each is sent by itself, so that none waits for another."""

    def __init__(
        self, shards: Sequence[ProxyClient], names: Sequence[EngineName], *, version: int = 0
    ) -> None:
        self._tables = [RouteTable(shard, names, version=version) for shard in shards]

    @property
    def num_moved(self) -> int:
        return sum(table.num_moved for table in self._tables)

    def want(
        self,
        assignments: Mapping[ExecutionId, int | None],
        is_ready: Callable[[int], bool],
        *,
        turned: bool = False,
    ) -> None:
        """Each shard gets its own executions; all shards look at engines that may have turned."""
        parts: list[dict[ExecutionId, int | None]] = [{} for _ in self._tables]
        for execution, engine in assignments.items():
            parts[shard_of(execution, len(parts))][execution] = engine
        for table, part in zip(self._tables, parts, strict=True):
            if part or turned:
                table.want(part, is_ready, turned=turned)

    def again(self, shard: int) -> None:
        """The shard is another process, which has no routes yet."""
        self._tables[shard].again()

    async def flushed(self) -> None:
        """All shards have the routes that are wanted now."""
        for table in self._tables:
            await table.flushed()

    async def work(self) -> None:
        """Sends routes to all shards, for as long as the run lasts."""
        async with asyncio.TaskGroup() as group:
            for table in self._tables:
                group.create_task(table.work())
