"""The proxy as the controller sees it: executions, routes and engines over its controls."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from gyre.types.errors import EngineError, TakenOver
from gyre.types.ids import EngineName, ExecutionId

UNAUTHORIZED = 401
UNAVAILABLE = (503, 529)
"""Its disk is full, or it is just ending; both pass."""
RETRY_S = 0.5
"""Pause before a proxy that does not answer is asked again; it may be starting anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedExecution:
    """An execution that is over at the proxy."""

    committed_calls: int
    held_s: float


class ProxyClient:
    """One proxy; what it does not hear is said again until it does."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def open(self, execution: ExecutionId) -> str | None:
        """A new execution's key; None if it exists, because its key is told once."""
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
        """Counts since the proxy began, once the engine has no call and nobody needs its cache."""
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
            EngineName(one["name"]): (one["in_flight"], one["num_tokens"])
            for one in found["engines"]
        }

    async def routes_version(self) -> int:
        """Of the order that it carried out last."""
        return int((await self._ask("GET", "status", None))["routes"])

    async def take_over(self, *, before: str, now: str) -> str | None:
        """From now on it obeys whoever shows the second token, and nobody else.

        The fingerprint of its sources; None of one that knows of no such thing.
        """
        found = await self._ask("POST", "take-over", {"token": now}, token=before)
        return found.get("version")

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
