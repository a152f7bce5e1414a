"""SGLang behind the Engine port: its native /generate, streamed, in token ids."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import aiohttp
import msgspec

from gyre.inference.clients import answer
from gyre.inference.clients.settings import of_sglang
from gyre.inference.clients.sglang_events import SglangStreamParser
from gyre.inference.clients.wire import EngineHttp, Field, decoded
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest, SamplingParams

STREAM_TOKENS = 32
"""Tokens per event. A kill loses at most these; one event per token would cost a multiple of the
work, because by default each event repeats the whole output."""
ECHO_TOKENS = 4_096
"""Longest prompt whose echo is asked for, because SGLang repeats the echo in every event. Of a
longer prompt the number of tokens is compared."""
ABORT_S = 5.0
"""How long an abort may take; the engine also notices the dropped connection, but later."""
NO_LOGPROBS = (
    "SGLang's log-probabilities leave top-p and top-k out, so none are recorded for calls that use"
    " them"
)


class _ModelInfo(msgspec.Struct):
    model_path: str | None = None
    weight_version: str | int | None = None


_MODEL_INFO = msgspec.json.Decoder(_ModelInfo)
_log = logging.getLogger(__name__)


class SglangEngine:
    """One SGLang server."""

    def __init__(
        self,
        name: EngineName,
        url: str,
        session: aiohttp.ClientSession,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._wire = EngineHttp(name, url, session)
        self._clock = clock
        self._aborts: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()

    @property
    def name(self) -> EngineName:
        return self._name

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        tells_draw = _tells_draw(ask.sampling)
        if not tells_draw:
            self._warn(NO_LOGPROBS)
        async with aclosing(self._generate(ask)) as chunks:
            async for chunk in chunks:
                yield chunk if tells_draw else replace(chunk, logprobs=None)

    async def _generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        reading = SglangStreamParser(self._name, prompt_tokens=len(ask.input_ids) // 4)
        final: Chunk | None = None
        reached = True
        heard = False
        try:
            async with aclosing(
                self._wire.stream(
                    "/generate", self._wire.body(_fields(ask), ids_as="input_ids", ask=ask)
                )
            ) as events:
                async for event in events:
                    heard = True
                    if final is not None:
                        continue
                    for chunk in reading.feed(event, self._clock()):
                        if chunk.finish is None:
                            yield chunk
                        else:
                            # Held until the stream has ended, so that its connection is kept.
                            final = chunk
        except EngineError:
            reached = heard
            if final is None:
                for chunk in reading.flush():
                    yield chunk
                raise
        finally:
            if final is None and reached:
                self._abort(request_id(ask.id))
        if final is None:
            raise EngineError(f"engine {self._name}: the stream ended without a finish reason")
        yield final

    async def health(self) -> EngineHealth:
        status, text = await self._wire.get("/health")
        if status != 200:
            detail = text.decode(errors="replace")[:200]
            return EngineHealth(ready=False, detail=f"/health says {status} {detail}".strip())
        status, text = await self._wire.get("/model_info")
        if status == 404:
            status, text = await self._wire.get("/get_model_info")
        if status != 200:
            return EngineHealth(ready=True, detail=f"/model_info says {status}")
        info = decoded(self._name, _MODEL_INFO, text)
        version = answer.version(info.weight_version)
        return EngineHealth(ready=True, version=version, model=info.model_path)

    async def close(self) -> None:
        await asyncio.gather(*self._aborts)

    def _warn(self, what: str) -> None:
        """Once, however often it is seen."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("engine %s: %s", self._name, what)

    def _abort(self, rid: str) -> None:
        # A task of its own, because the one that asked may be on its way out.
        task = asyncio.get_running_loop().create_task(self._send_abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, rid: str) -> None:
        path = "/abort_request"
        try:
            async with asyncio.timeout(ABORT_S):
                status, _ = await self._wire.post(path, msgspec.json.encode({"rid": rid}))
        except (EngineError, TimeoutError):
            # An engine that cannot hear it has lost the request, or drops it with the connection.
            return
        if status != 200:
            self._warn(f"{path} says {status}; it works on for a while at what nobody waits for")


def request_id(ask_id: str) -> str:
    """Of an ask, at the engine.

    An abort takes every request whose id begins with the given one: "call-1" and "call-12".
    """
    return f"{ask_id}$"


def _tells_draw(sampling: SamplingParams) -> bool:
    """Whether what SGLang reports is of the distribution sampled from (T28).

    It divides by the temperature and then reports, before top-p and top-k leave tokens out. A
    greedy choice is reported at temperature 1.
    """
    whole = sampling.top_p == 1.0 and sampling.top_k is None
    return whole or sampling.temperature == 0.0


def _fields(ask: GenerateRequest) -> dict[str, Field]:
    fields: dict[str, Field] = {
        "rid": request_id(ask.id),
        "sampling_params": of_sglang(ask.sampling, stream_tokens=STREAM_TOKENS),
        "return_logprob": True,
        "stream": True,
    }
    if len(ask.input_ids) <= 4 * ECHO_TOKENS:
        fields["return_prompt_token_ids"] = True
    return fields
