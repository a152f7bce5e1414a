"""A run's proxy as its controller sees it: one process or several, each with its executions."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gyre.proxy.proxied import ProxyClient, SealedExecution
from gyre.types.ids import EngineName, ExecutionId
from gyre.types.shards import shard_of

ANSWER_S = 5.0
"""How long the others wait for a shard that is just being started again."""


class ShardedProxyClient:
    """All shards; whoever asks them need not know how many there are."""

    def __init__(self, shards: Sequence[ProxyClient]) -> None:
        self.shards = shards

    async def open(self, execution: ExecutionId) -> str | None:
        """A new execution's key; None if it exists, because its key is told once."""
        return await self._of(execution).open(execution)

    async def seal(self, execution: ExecutionId) -> SealedExecution:
        """Its key works no more and its log is final; the same again if they are already."""
        return await self._of(execution).seal(execution)

    def url_of(self, execution: ExecutionId) -> str:
        """Where the execution's program reaches the model."""
        return self._of(execution).url_of(execution)

    async def wait_drained(self, engine: EngineName) -> dict[str, Any]:
        """Numbers of all, once the engine has no call of any and nobody needs its cache."""
        found: Counter[str] = Counter()
        for counts in await asyncio.gather(*(one.wait_drained(engine) for one in self.shards)):
            found.update({name: one for name, one in counts.items() if not isinstance(one, dict)})
        return dict(found)

    async def held(self) -> dict[str, float]:
        """Seconds that calls were held without an engine, by execution of shards that answer."""
        found: dict[str, float] = {}
        for held in await asyncio.gather(*map(self._held, self.shards)):
            found |= held
        return found

    async def work_of_engines(self) -> dict[EngineName, tuple[int, int]]:
        """Calls that each has in flight, and tokens that it has sampled since proxies began."""
        found: dict[EngineName, tuple[int, int]] = {}
        for work in await asyncio.gather(*(one.work_of_engines() for one in self.shards)):
            for engine, (in_flight, tokens) in work.items():
                calls, sampled = found.get(engine, (0, 0))
                found[engine] = (calls + in_flight, sampled + tokens)
        return found

    async def _held(self, shard: ProxyClient) -> dict[str, float]:
        """Nothing of one that does not answer in time; it counts on, and is asked again."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await shard.held()
        except TimeoutError:
            return {}

    def _of(self, execution: ExecutionId) -> ProxyClient:
        return self.shards[shard_of(execution, len(self.shards))]
