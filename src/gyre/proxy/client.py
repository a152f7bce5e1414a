"""The controller's client of a proxy: one process, or all shards."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from gyre.types.errors import EngineError, TakenOver
from gyre.types.ids import EngineName, ExecutionId, shard_of

UNAUTHORIZED = 401
UNAVAILABLE = (503, 529)
"""Its disk is full, or it is just ending; both pass."""
RETRY_S = 0.5
"""Pause before a proxy that does not answer is asked again; it may be starting anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedExecution:
    """What a proxy had counted of an execution when it sealed the log."""

    committed_calls: int
    held_s: float


class ProxyClient:
    """The controller's client of one proxy process; requests are repeated until they arrive."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def open(self, execution: ExecutionId) -> str | None:
        """A new execution's key; None if it exists, because a key is given only once."""
        key: str | None = (await self._ask("PUT", f"executions/{execution}", {}))["key"]
        return key

    async def seal(self, execution: ExecutionId) -> SealedExecution:
        """Its key works no more and its log is final; the same again if they are already."""
        found = await self._ask("POST", f"executions/{execution}/close", {})
        return SealedExecution(committed_calls=found["committed"], held_s=found["held_s"])

    async def assign(self, version: int, routes: Mapping[ExecutionId, EngineName | None]) -> int:
        """How many calls the order moved."""
        body = {"version": version, "routes": dict(routes)}
        return int((await self._ask("PUT", "routes", body))["moved"])

    async def wait_drained(self, engine: EngineName) -> dict[str, Any]:
        """Counts since the proxy began, once the engine has no call and its cache is not needed."""
        found: dict[str, Any] = await self._ask("POST", f"engines/{engine}/vacated", {})
        return dict(found["counts"])

    async def set_address(self, engine: EngineName, url: str) -> None:
        """From now on the engine is asked there."""
        await self._ask("PUT", f"engines/{engine}", {"url": url})

    async def held(self) -> dict[str, float]:
        """Seconds that calls were held without an engine, by execution."""
        found = await self._ask("GET", "status", None)
        return {name: one["held_s"] for name, one in found["executions"].items()}

    async def work_of_engines(self) -> dict[EngineName, tuple[int, int]]:
        """Calls that each has in flight, and tokens that it has sampled since the proxy began."""
        found = await self._ask("GET", "status", None)
        return {
            EngineName(engine["name"]): (engine["in_flight"], engine["num_tokens"])
            for engine in found["engines"]
        }

    async def routes_version(self) -> int:
        """Of the order that it carried out last."""
        return int((await self._ask("GET", "status", None))["routes"])

    async def take_over(self, *, before: str, now: str) -> str:
        """The fingerprint of its sources; it now answers only the second token."""
        found = await self._ask("POST", "take-over", {"token": now}, token=before)
        return str(found["version"])

    async def answers(self, within_s: float) -> bool:
        """Whether it says anything at all in time, asked once."""
        try:
            async with (
                asyncio.timeout(within_s),
                self._session.get(f"{self.url}/gyre/status") as answer,
            ):
                await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return True

    def url_of(self, execution: ExecutionId) -> str:
        """Where the execution's program reaches the model."""
        return f"{self.url}/exec/{execution}"

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        token: str | None = None,
    ) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        while True:
            try:
                async with self._session.request(
                    method, f"{self.url}/gyre/{path}", json=body, headers=headers
                ) as answer:
                    found: dict[str, Any] = await answer.json()
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError):
                await asyncio.sleep(RETRY_S)
                continue
            if answer.status == 200:
                return found
            if answer.status in UNAVAILABLE:
                await asyncio.sleep(RETRY_S)
                continue
            message = f"proxy: {method} {path}: {answer.status} {found}"
            if answer.status == UNAUTHORIZED:
                raise TakenOver(f"{message}: it obeys another controller")
            raise EngineError(message, retryable=False)


ANSWER_S = 5.0
"""How long the others wait for a shard that is just being started again."""


class ShardedProxyClient:
    """All shards as one client: each request goes to the shard of its execution."""

    def __init__(self, shards: Sequence[ProxyClient]) -> None:
        self.shards = shards

    async def open(self, execution: ExecutionId) -> str | None:
        return await self._of(execution).open(execution)

    async def seal(self, execution: ExecutionId) -> SealedExecution:
        return await self._of(execution).seal(execution)

    def url_of(self, execution: ExecutionId) -> str:
        return self._of(execution).url_of(execution)

    async def wait_drained(self, engine: EngineName) -> dict[str, Any]:
        """Counts of all shards, once the engine has no call and no other needs its cache."""
        found: Counter[str] = Counter()
        for counts in await asyncio.gather(*(shard.wait_drained(engine) for shard in self.shards)):
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
        for work in await asyncio.gather(*(shard.work_of_engines() for shard in self.shards)):
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
