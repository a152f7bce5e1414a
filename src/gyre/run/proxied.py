"""The proxy as the controller sees it: executions, routes and engines over its controls."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from gyre.words.errors import EngineError
from gyre.words.ids import EngineName, ExecutionId

RETRY_S = 0.5
"""Pause before a proxy that does not answer is asked again; it may be starting anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """An execution that is over at the proxy."""

    committed_calls: int
    held_s: float


class ProxyClient:
    """One proxy; what it does not hear is said again until it does."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def open(self, execution: ExecutionId) -> str:
        """A new execution's key."""
        return str((await self._ask("POST", "executions", {"id": execution}))["key"])

    async def seal(self, execution: ExecutionId) -> Sealed:
        """Its key works no more and its log is final."""
        found = await self._ask("POST", f"executions/{execution}/close", {})
        return Sealed(committed_calls=found["committed"], held_s=found["held_s"])

    async def assign(self, version: int, routes: Mapping[ExecutionId, EngineName | None]) -> int:
        """How many calls the order moved."""
        body = {"version": version, "routes": dict(routes)}
        return int((await self._ask("PUT", "routes", body))["moved"])

    async def vacated(self, engine: EngineName) -> dict[str, Any]:
        """Counts since the proxy began, once the engine has no call and nobody needs its cache."""
        found: dict[str, Any] = await self._ask("POST", f"engines/{engine}/vacated", {})
        return dict(found["counts"])

    async def held(self) -> dict[str, float]:
        """Seconds that calls were held without an engine, by execution."""
        found = await self._ask("GET", "status", None)
        return {name: one["held_s"] for name, one in found["executions"].items()}

    def url_of(self, execution: ExecutionId) -> str:
        """Where the execution's program reaches the model."""
        return f"{self.url}/exec/{execution}"

    async def _ask(self, method: str, path: str, body: Any) -> dict[str, Any]:
        while True:
            try:
                async with self._session.request(
                    method, f"{self.url}/gyre/{path}", json=body
                ) as answer:
                    found: dict[str, Any] = await answer.json()
                    if answer.status == 200:
                        return found
                    message = f"proxy: {method} {path}: {answer.status} {found}"
                    raise EngineError(message, retryable=False)
            except (aiohttp.ClientConnectionError, OSError):
                await asyncio.sleep(RETRY_S)
