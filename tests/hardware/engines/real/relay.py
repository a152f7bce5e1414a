"""A relay between a proxy and an engine that keeps what went by, so that both can be compared."""

import asyncio
import json
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

GENERATES = ("/generate", "/v1/completions")


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request for tokens, and the events it was answered with."""

    sent: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self.sent.get("input_ids", self.sent.get("prompt"))
        return ids

    @property
    def echo(self) -> list[int] | None:
        """The prompt ids the engine says it saw; SGLang says so beside, vLLM in its choice."""
        for event in self.events:
            places = [event, *event.get("choices", [])]
            found = [one["prompt_token_ids"] for one in places if one.get("prompt_token_ids")]
            if found:
                ids: list[int] = found[0]
                return ids
        return None


class Relay:
    """Runs in a thread of its own; an engine that is gone shows as a connection that breaks."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._told = threading.Condition()
        self.exchanges: list[Exchange] = []
        self.url = ""

    def wait_events(self, count: int, timeout_s: float) -> None:
        """Until the latest exchange has so many events."""
        with self._told:
            assert self._told.wait_for(
                lambda: bool(self.exchanges) and len(self.exchanges[-1].events) >= count, timeout_s
            ), f"no {count} events within {timeout_s:g} s"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        response = web.StreamResponse()
        try:
            async with self._session.request(
                request.method, self._upstream + request.path_qs, data=data, headers=request.headers
            ) as answer:
                response.set_status(answer.status)
                response.content_type = answer.content_type
                await response.prepare(request)
                exchange = self._noted(request.path, data)
                held = b""
                async for piece in answer.content.iter_any():
                    held = self._keep(exchange, held + piece)
                    await response.write(piece)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
        return response

    def _noted(self, path: str, data: bytes) -> Exchange:
        exchange = Exchange(sent=json.loads(data) if data else {})
        if path in GENERATES and exchange.sent.get("stream"):
            with self._told:
                self.exchanges.append(exchange)
        return exchange

    def _keep(self, exchange: Exchange, held: bytes) -> bytes:
        *lines, rest = held.split(b"\n")
        with self._told:
            exchange.events += [
                json.loads(line[6:]) for line in lines if line.startswith(b"data: {")
            ]
            self._told.notify_all()
        return rest

    async def _serve(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        self._runner = web.ServerRunner(web.Server(self._handle))
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
