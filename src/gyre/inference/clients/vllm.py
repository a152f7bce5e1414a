"""vLLM behind the Engine port: /v1/completions with token ids both ways, streamed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import aiohttp
import msgspec

from gyre.inference.clients import answer
from gyre.inference.clients.settings import of_vllm
from gyre.inference.clients.vllm_logprobs import LogprobsMode
from gyre.inference.clients.wire import EngineHttp, Field, decoded, refusal
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest

STREAM_TOKENS = 16
"""Tokens per event, where the server knows the option; a kill loses at most these."""
NOTHING_SAID = 500
"""The code of an error that names none."""


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    text: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _WeightInfo(msgspec.Struct):
    weight_version: str | int | None = None


_EVENT = msgspec.json.Decoder(_Event)
_MODELS = msgspec.json.Decoder(_Models)
_WEIGHT_INFO = msgspec.json.Decoder(_WeightInfo)


class VllmEngine:
    """One vLLM server; it does not say which weights sampled a token of a completion."""

    def __init__(self, name: EngineName, url: str, session: aiohttp.ClientSession) -> None:
        self._name = name
        self._wire = EngineHttp(name, url, session)
        self._mode = LogprobsMode(self._wire)

    @property
    def name(self) -> EngineName:
        return self._name

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        final: Chunk | None = None
        usage: _Usage | None = None
        sampled = 0
        try:
            tells_draw = await self._mode.tells_draw(ask.sampling)
            # Closing the stream drops the connection, which is how vLLM is told to abort.
            async with aclosing(
                self._wire.stream(
                    "/v1/completions", self._wire.body(_fields(ask), ids_as="prompt", ask=ask)
                )
            ) as events:
                async for data in events:
                    event = self._read(data)
                    for chunk in self._chunks(event):
                        sampled += len(chunk.ids)
                        told = chunk if tells_draw else replace(chunk, logprobs=None)
                        if chunk.finish is None:
                            yield told
                        else:
                            # Held until the stream has ended and its counts are compared.
                            final = told
                    usage = event.usage
        except EngineError:
            self._mode.forget()
            if final is None:
                raise
        if final is None:
            raise EngineError(f"engine {self._name}: the stream ended without a finish reason")
        if usage is not None:
            self._compare(usage, len(ask.input_ids) // 4, sampled)
        yield final

    async def health(self) -> EngineHealth:
        status, text = await self._wire.get("/health")
        if status != 200:
            detail = text.decode(errors="replace")[:200]
            return EngineHealth(ready=False, detail=f"/health says {status} {detail}".strip())
        status, text = await self._wire.get("/v1/models")
        if status != 200:
            return EngineHealth(ready=True, detail=f"/v1/models says {status}")
        models = decoded(self._name, _MODELS, text).data
        # Served in development mode only; elsewhere the version stays unknown.
        status, text = await self._wire.get("/weight_info")
        said = decoded(self._name, _WEIGHT_INFO, text).weight_version if status == 200 else None
        return EngineHealth(
            ready=True,
            version=answer.version(said),
            model=models[0].id if models else None,
        )

    async def close(self) -> None:
        return

    def _read(self, data: bytes) -> _Event:
        event = decoded(self._name, _EVENT, data)
        if event.error is not None:
            code = event.error.code
            status = code if isinstance(code, int) else NOTHING_SAID
            raise refusal(self._name, status, event.error.message)
        return event

    def _chunks(self, event: _Event) -> list[Chunk]:
        if not event.choices:
            return []
        choice = event.choices[0]
        if choice.token_ids is None and (choice.text or choice.finish_reason is not None):
            raise EngineError(f"engine {self._name}: an event without its token ids")
        ids = choice.token_ids if choice.token_ids is not None else []
        values = None if choice.logprobs is None else choice.logprobs.token_logprobs
        if not ids and values is None:
            values = []
        logprobs = answer.check(self._name, ids, values)
        answer.check_echo(self._name, choice.prompt_token_ids)
        if choice.finish_reason not in (None, "stop", "length", "abort"):
            raise EngineError(f"engine {self._name}: finish reason {choice.finish_reason!r}")
        return [
            Chunk(
                ids=ids,
                logprobs=logprobs,
                finish=choice.finish_reason,
                prompt_ids=choice.prompt_token_ids,
            )
        ]

    def _compare(self, usage: _Usage, prompt_tokens: int, sampled: int) -> None:
        if usage.prompt_tokens != prompt_tokens:
            raise EngineError(
                f"engine {self._name}: it read {usage.prompt_tokens} prompt tokens of the"
                f" {prompt_tokens} it was sent",
                retryable=False,
            )
        if usage.completion_tokens != sampled:
            raise EngineError(
                f"engine {self._name}: it sampled {usage.completion_tokens} tokens and sent"
                f" {sampled}"
            )


def _fields(ask: GenerateRequest) -> dict[str, Field]:
    return {
        "request_id": ask.id,
        **of_vllm(ask.sampling, stream_tokens=STREAM_TOKENS),
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
