"""SGLang and `gyre serve` clients."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import aiohttp
import msgspec

from gyre.inference.clients import http
from gyre.inference.clients.http import EngineHttp, Field, decoded, of_sglang, refusal
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import (
    Chunk,
    EngineHealth,
    GenerateRequest,
    PinnedKv,
    SamplingParams,
    StoredKv,
)

READ_EVERY_S = 0.25
"""How long events that repeat the whole output may wait unread; the latest holds them all."""
_RUNNING = b'"finish_reason":null'

T = TypeVar("T")


class _Finish(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


class _VersionSpan(msgspec.Struct):
    version: str | int
    start: int
    end: int


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_version: str | int | None = None
    weight_versions: list[_VersionSpan] | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: int = 500


class _Event(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    prompt_token_ids: list[int] | None = None
    error: _Error | None = None


_EVENT = msgspec.json.Decoder(_Event)


class SglangStreamParser:
    """One stream read so far; events that only repeat are left unread for a moment."""

    def __init__(self, engine: str, *, prompt_tokens: int) -> None:
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        self._taken = 0
        self._cumulative = False
        self._echoed = False
        self._waiting: bytes | None = None
        self._read_at = 0.0
        self._version_mark = b""

    def feed(self, event: bytes, now: float) -> Iterator[Chunk]:
        """The chunks of this event; an empty one, a sign of life, when it is left for later."""
        goes_on = _RUNNING in event and self._version_mark in event
        if goes_on and self._cumulative and now - self._read_at < READ_EVERY_S:
            self._waiting = event
            yield Chunk(ids=[], logprobs=[])
            return
        if not goes_on:
            # The event before shows what was sampled before the end, or by the older weights.
            yield from self.flush()
        chunks = self._read(event)
        self._waiting = None
        self._read_at = now
        yield from chunks

    def flush(self) -> Iterator[Chunk]:
        """The chunks of what was left for later."""
        event, self._waiting = self._waiting, None
        if event is not None:
            yield from self._read(event)

    def _read(self, data: bytes) -> list[Chunk]:
        event = decoded(self._engine, _EVENT, data)
        if event.error is not None:
            raise refusal(self._engine, event.error.code, event.error.message)
        meta = event.meta_info
        if meta is None:
            raise self._garbage("an event without meta_info")
        finish = self._finish(meta.finish_reason)
        if finish == "abort":
            return self._aborted(event, meta)
        if event.output_ids is None or meta.completion_tokens is None:
            raise self._garbage("an event without its output ids")
        if meta.prompt_tokens not in (None, self._prompt_tokens):
            raise EngineError(
                f"engine {self._engine}: it read {meta.prompt_tokens} prompt tokens of the"
                f" {self._prompt_tokens} it was sent",
                retryable=False,
            )
        return self._chunks(event, meta, meta.completion_tokens, finish)

    def _finish(self, said: _Finish | None) -> str | None:
        if said is None:
            return None
        if said.type not in ("stop", "length", "abort"):
            raise self._garbage(f"finish reason {said.type!r}")
        if said.type == "abort" and said.status_code is not None:
            raise refusal(self._engine, said.status_code, said.message or "aborted")
        return said.type

    def _aborted(self, event: _Event, meta: _Meta) -> list[Chunk]:
        """What an abort adds; nothing where it does not align, as it may repeat the last id."""
        total = self._taken if meta.completion_tokens is None else meta.completion_tokens
        try:
            return self._chunks(event, meta, total, "abort")
        except EngineError:
            return [Chunk(ids=[], logprobs=[], finish="abort")]

    def _chunks(self, event: _Event, meta: _Meta, total: int, finish: str | None) -> list[Chunk]:
        listed = event.output_ids if event.output_ids is not None else []
        ids = self._new(listed, total)
        triples = meta.output_token_logprobs
        values = None
        if triples is not None:
            fresh = self._new(triples, total)
            if [token for _, token, _ in fresh] != ids:
                raise self._garbage("log-probabilities of other ids than it sampled")
            values = [value for value, _, _ in fresh]
        logprobs = http.check(self._engine, ids, values)
        http.check_echo(self._engine, event.prompt_token_ids)
        chunks = self._by_version(ids, logprobs, meta)
        if self._taken:
            self._cumulative = len(listed) == total > len(ids)
        if isinstance(meta.weight_version, str):
            self._version_mark = b'"weight_version":' + msgspec.json.encode(meta.weight_version)
        self._taken = total
        if event.prompt_token_ids is not None and not self._echoed:
            self._echoed = True
            chunks[0] = replace(chunks[0], prompt_ids=event.prompt_token_ids)
        chunks[-1] = replace(chunks[-1], finish=finish)
        return chunks

    def _new(self, listed: Sequence[T], total: int) -> list[T]:
        """What comes after the tokens already taken, in a list of all or of the new ones."""
        if len(listed) == total >= self._taken:
            return list(listed[self._taken :])
        if len(listed) == total - self._taken:
            return list(listed)
        raise self._garbage(
            f"{len(listed)} entries where {total} tokens are sampled and {self._taken} were taken"
        )

    def _by_version(self, ids: list[int], logprobs: list[float] | None, meta: _Meta) -> list[Chunk]:
        """The new ids, cut where the weights changed; at least one chunk."""
        spans = meta.weight_versions
        if spans is None or not ids:
            version = http.version(meta.weight_version)
            return [Chunk(ids=ids, logprobs=logprobs, version=version)]
        chunks = []
        for span in spans:
            cut = slice(max(span.start - self._taken, 0), max(span.end - self._taken, 0))
            if piece := ids[cut]:
                values = None if logprobs is None else logprobs[cut]
                version = http.version(span.version)
                chunks.append(Chunk(ids=piece, logprobs=values, version=version))
        if [token for chunk in chunks for token in chunk.ids] != ids:
            # Spans that do not cover the ids say nothing about them.
            return [Chunk(ids=ids, logprobs=logprobs, version=None)]
        return chunks

    def _garbage(self, found: str) -> EngineError:
        return EngineError(f"engine {self._engine}: {found}")


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
    """Client of one SGLang server."""

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
        version = http.version(info.weight_version)
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


class _Held(msgspec.Struct):
    pin: int
    tokens: int


class _Put(msgspec.Struct):
    bytes: int
    name: str = msgspec.field(name="from")


_T = TypeVar("_T")
_HELD = msgspec.json.Decoder(_Held)
_PUT = msgspec.json.Decoder(_Put)


class GyreEngine(SglangEngine):
    """Client of one server of the built-in engine, `gyre serve` or a cell's."""

    def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Its log-probabilities are of the distribution drawn from, with any top-p and top-k."""
        return self._generate(ask)

    async def pin(self, ask_id: str) -> PinnedKv:
        return _held(await self._order("/kv/pin", {"rid": request_id(ask_id)}, _HELD))

    async def put(self, pin: int, name: str) -> StoredKv:
        found = await self._order("/kv/put", {"pin": pin, "to": name}, _PUT)
        return StoredKv(name=found.name, num_bytes=found.bytes)

    async def take(self, name: str) -> PinnedKv:
        return _held(await self._order("/kv/take", {"from": name}, _HELD))

    async def let_go(self, pin: int) -> None:
        await self._post("/kv/release", {"pin": pin})

    async def _order(
        self, path: str, body: Mapping[str, int | str], of: msgspec.json.Decoder[_T]
    ) -> _T:
        return decoded(self.name, of, await self._post(path, body))

    async def _post(self, path: str, body: Mapping[str, int | str]) -> bytes:
        status, text = await self._wire.post(path, msgspec.json.encode(body))
        if status != 200:
            detail = text.decode(errors="replace")[:200]
            raise EngineError(f"engine {self.name}: {path} says {status} {detail}".strip())
        return text


def _held(found: _Held) -> PinnedKv:
    return PinnedKv(pin=found.pin, tokens=found.tokens)
