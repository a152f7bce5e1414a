"""The engine over HTTP: SGLang's paths, OpenAI's completions, control requests and metrics."""

import asyncio
import hmac
import uuid
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from gyre.config.sections import LimitsConfig
from gyre.inference.engine.request import Capacity
from gyre.inference.kv_transfer import KvStore
from gyre.inference.server.control_api import PIN_S, ControlApi, ControllableEngine
from gyre.inference.server.openai_api import CompletionRequest
from gyre.inference.server.protocol import DONE, ServedModel, encoded, refused, status_of
from gyre.inference.server.sglang_api import SglangRequest
from gyre.net.http_server import EVENTS, ClientGone, Exchange, Receive, Scope, Send
from gyre.net.sse import unnamed
from gyre.types.errors import EngineError, GyreError, NotFound, Unauthorized, Unavailable
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest, SamplingParams

PLAIN = b"text/plain; version=0.0.4; charset=utf-8"
BYTES = b"application/octet-stream"
LARGE_BYTES = 2**16
"""Bodies beyond this are read beside the loop, so that other requests do not wait."""
PATIENCE_S = 20.0
"""How long one token may take before /health_generate says that none comes."""
OPEN = ("/health", "/health_generate", "/metrics")
"""Paths that ask for no key."""

ApiRequest = SglangRequest | CompletionRequest
"""A parsed request."""
Read = Callable[[bytes, ServedModel, str], ApiRequest]
Order = Callable[[bytes], Awaitable[Mapping[str, Any]]]


class Server:
    """Answers all HTTP requests to an engine: SGLang's API, OpenAI's, and control."""

    def __init__(
        self,
        engine: ControllableEngine,
        served: ServedModel,
        *,
        limits: LimitsConfig,
        kv_bytes: int,
        key: str | None = None,
        kv_store: KvStore | None = None,
        patience_s: float = PATIENCE_S,
        pin_s: float = PIN_S,
    ) -> None:
        """Without a KV store no cached blocks are laid for other engines, and none taken."""
        self._engine = engine
        self._served = served
        self._limits = limits
        self._key = key
        self._patience_s = patience_s
        self._running: set[str] = set()
        self._stopping = False
        self._requests: Counter[tuple[str, int]] = Counter()
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._controls = ControlApi(
            engine, self._running, kv_bytes=kv_bytes, kv_store=kv_store, pin_s=pin_s
        )
        controls = self._controls
        self._wires: dict[str, Read] = {
            "/generate": SglangRequest,
            "/v1/completions": CompletionRequest,
        }
        self._orders: dict[str, Order] = {
            "/abort_request": controls.abort,
            "/pause_generation": controls.pause,
            "/continue_generation": controls.resume,
            "/update_weights_from_disk": controls.load,
            "/release_memory_occupation": controls.offload,
            "/resume_memory_occupation": controls.wake,
            "/kv/release": controls.release,
            "/kv/put": controls.put,
        }
        self._pinning: dict[str, Order] = {
            "/kv/pin": controls.pin,
            "/kv/take": controls.take,
            "/kv/import": controls.take_in,
        }
        self._about: dict[str, Callable[[], Awaitable[Mapping[str, Any]]]] = {
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/weight_info": self._model_info,
            "/v1/models": self._models,
            "/health": self._health,
            "/health_generate": self._health_generate,
        }
        rest = {"/kv/export", "/metrics"}
        self._paths = {*self._wires, *self._orders, *self._pinning, *self._about, *rest}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        if scope["type"] == "http":
            with suppress(ClientGone):
                await self.answer(Exchange(scope, receive, send))

    async def answer(self, exchange: Exchange) -> None:
        """The exchange is over, one way or another."""
        try:
            self._check_key(exchange)
            if exchange.method == "POST":
                await self._post(exchange)
            elif exchange.method == "GET":
                await self._get(exchange)
            else:
                raise _unknown(exchange)
        except GyreError as error:
            await self._refuse(exchange, error)
        finally:
            # Only paths that exist, because clients could fill the memory with others.
            path = exchange.path if exchange.path in self._paths else "other"
            self._requests[path, exchange.status or 499] += 1

    async def stop(self) -> None:
        """Requests in flight end with what they have, and no others are taken."""
        self._stopping = True
        await self._controls.abort_all()

    async def _post(self, exchange: Exchange) -> None:
        path, controls = exchange.path, self._controls
        if path in self._wires:
            await self._generate(exchange, self._wires[path])
        elif path in self._orders:
            done = await self._orders[path](await self._body(exchange))
            await exchange.answer(200, encoded(done))
        elif path == "/kv/export":
            data = await controls.export(await self._body(exchange))
            await exchange.answer(200, data, BYTES)
        elif path in self._pinning:
            await self._pin(exchange, self._pinning[path])
        else:
            raise _unknown(exchange)

    async def _pin(self, exchange: Exchange, order: Order) -> None:
        """A pin whose client left before it got the answer is let go."""
        most_bytes = self._limits.body_bytes
        if exchange.path == "/kv/import":
            most_bytes = self._controls.most_import_bytes
        body = await exchange.body(most_bytes=most_bytes, within_s=self._limits.body_s)
        gone = asyncio.create_task(exchange.gone())
        try:
            done = await order(body)
        finally:
            is_gone = gone.done()
            gone.cancel()
        if is_gone:
            await self._controls.let_go(done["pin"])
        else:
            await exchange.answer(200, encoded(done))

    async def _get(self, exchange: Exchange) -> None:
        if exchange.path in self._about:
            await exchange.answer(200, encoded(await self._about[exchange.path]()))
        elif exchange.path == "/metrics":
            gauges = self._gauges(await self._engine.capacity(), await self._engine.health())
            await exchange.answer(200, _prometheus(gauges), PLAIN)
        else:
            raise _unknown(exchange)

    async def _generate(self, exchange: Exchange, wire: Read) -> None:
        body = await self._body(exchange)
        if self._stopping:
            raise Unavailable("the server is stopping")
        fresh = uuid.uuid4().hex
        if len(body) > LARGE_BYTES:
            telling = await asyncio.to_thread(wire, body, self._served, fresh)
        else:
            telling = wire(body, self._served, fresh)
        await _while_there(exchange, self._tell(exchange, telling))

    async def _tell(self, exchange: Exchange, telling: ApiRequest) -> None:
        """The headers wait for the first tokens, so that a refusal has its own status."""
        kept: list[Chunk] = []
        async with aclosing(self._chunks(telling.ask)) as chunks:
            async for chunk in chunks:
                if not telling.is_stream:
                    kept.append(chunk)
                    continue
                if exchange.status is None:
                    await exchange.start(200, EVENTS)
                await exchange.write(unnamed(telling.data(telling.output.take([chunk]))))
        if telling.is_stream:
            await exchange.write(telling.tail(), last=True)
        else:
            answered = telling.answer(telling.output.take(kept))
            await exchange.answer(200, encoded(answered))

    async def _chunks(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        is_ours = ask.id not in self._running
        self._running.add(ask.id)
        try:
            async with aclosing(self._engine.generate(ask)) as chunks:
                async for chunk in chunks:
                    if chunk.prompt_ids is not None:
                        self._prompt_tokens += len(chunk.prompt_ids)
                    self._output_tokens += len(chunk.ids)
                    yield chunk
        finally:
            if is_ours:
                # The engine refuses a second request of the same id, which then leaves it alone.
                self._running.discard(ask.id)

    async def _body(self, exchange: Exchange) -> bytes:
        return await exchange.body(most_bytes=self._limits.body_bytes, within_s=self._limits.body_s)

    def _check_key(self, exchange: Exchange) -> None:
        if self._key is None or exchange.path in OPEN:
            return
        given = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            raise Unauthorized("expected the server's key as a bearer token")

    async def _refuse(self, exchange: Exchange, error: GyreError) -> None:
        if exchange.status is not None:
            # The stream has begun, so that an event is all that can follow.
            await exchange.write(unnamed(refused(error)) + DONE, last=True)
            return
        said: dict[str, Any] = refused(error)
        if exchange.path == "/update_weights_from_disk":
            said = {"success": False, "message": str(error), **said}
        await exchange.answer(status_of(error), encoded(said))

    async def _health(self) -> Mapping[str, Any]:
        found = await self._engine.health()
        if not found.ready or self._stopping:
            raise EngineError(found.detail or "the server is stopping")
        return {"ok": True, "detail": found.detail}

    async def _health_generate(self) -> Mapping[str, Any]:
        """Ready means here that a token comes."""
        ask = GenerateRequest(
            id=f"health-{uuid.uuid4().hex}",
            input_ids=array("i", [0]).tobytes(),
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            execution="",
        )
        try:
            async with asyncio.timeout(self._patience_s):
                async with aclosing(self._engine.generate(ask)) as chunks:
                    async for _ in chunks:
                        pass
        except TimeoutError as error:
            detail = (await self._engine.health()).detail
            message = f"no token within {self._patience_s:g} s {detail}".rstrip()
            raise EngineError(message) from error
        return {"ok": True}

    async def _model_info(self) -> Mapping[str, Any]:
        version = (await self._engine.health()).version
        return {
            "model_path": self._served.model,
            "served_model_name": self._served.name,
            "is_generation": True,
            "weight_version": str(version),
            "context_length": self._served.context_tokens,
            "engine": "gyre",
        }

    async def _server_info(self) -> Mapping[str, Any]:
        capacity = await self._engine.capacity()
        return {
            **await self._model_info(),
            "max_running_requests": capacity.most_running,
            "max_total_num_tokens": capacity.blocks * capacity.block_tokens,
            "num_running_reqs": capacity.running,
            "num_queue_reqs": capacity.waiting,
        }

    async def _models(self) -> Mapping[str, Any]:
        model = {
            "id": self._served.name,
            "object": "model",
            "owned_by": "gyre",
            "max_model_len": self._served.context_tokens,
        }
        return {"object": "list", "data": [model]}

    def _gauges(
        self, capacity: Capacity, health: EngineHealth
    ) -> Iterator[tuple[str, str, str, int]]:
        """Name, meaning, labels and value, those of one name together."""
        for (path, status), number in sorted(self._requests.items()):
            label = f'{{path="{path}",status="{status}"}}'
            yield "gyre_serve_requests_total", "Requests by path and status.", label, number
        prompt, output = self._prompt_tokens, self._output_tokens
        yield "gyre_serve_prompt_tokens_total", "Prompt tokens of answered asks.", "", prompt
        yield "gyre_serve_output_tokens_total", "Tokens sampled.", "", output
        yield "gyre_serve_running", "Calls that are part of passes.", "", capacity.running
        yield "gyre_serve_waiting", "Calls that wait for room.", "", capacity.waiting
        yield "gyre_serve_blocks", "Cache blocks.", "", capacity.blocks
        yield "gyre_serve_free_blocks", "Blocks nobody holds.", "", capacity.available_blocks
        yield "gyre_serve_weights_version", "Version of the weights.", "", health.version or 0
        yield "gyre_serve_ready", "Whether asks are taken.", "", int(health.ready)


async def _while_there(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, unless the client closes its connection first."""
    doing = asyncio.create_task(work)
    gone = asyncio.create_task(exchange.gone())
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
    try:
        await doing
    except asyncio.CancelledError:
        if not gone.done():
            raise


def _unknown(exchange: Exchange) -> NotFound:
    return NotFound(f"{exchange.method} {exchange.path}: no such path")


def _prometheus(samples: Iterator[tuple[str, str, str, int]]) -> bytes:
    lines: list[str] = []
    described = None
    for name, meaning, label, value in samples:
        if name != described:
            described = name
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines.append(f"{name}{label} {value:d}")
    return ("\n".join(lines) + "\n").encode()
