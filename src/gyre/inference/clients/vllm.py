"""vLLM client.

Whether a vLLM server's log-probabilities are of the distribution it samples from (T28).

By default vLLM reports them as the model gave them, before temperature, top-p and top-k; only with
`--logprobs-mode processed_logprobs` are they those of the draw. The mode is the server's and no
request can set it, so a server is asked for one token of which the two modes say different things.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import aiohttp
import msgspec

from gyre.inference.clients import http
from gyre.inference.clients.http import EngineHttp, decoded, of_vllm, refusal, vllm_stream
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest, SamplingParams

RULED_OUT = -1_000.0
"""vLLM writes -9999 for a token that could not be drawn; a model's own values stay far above."""
_PROBE = msgspec.json.encode(
    # With top_k=1 a second token is impossible if the draw is reported, and likely enough if not.
    {
        "prompt": [0],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
        "min_p": 0.0,
        "logprobs": 2,
    }
)

_log = logging.getLogger(__name__)


class _Logprobs(msgspec.Struct):
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_COMPLETION = msgspec.json.Decoder(_Completion)


def is_plain(sampling: SamplingParams) -> bool:
    """Whether both modes say the same: nothing is scaled or left out, or nothing is drawn."""
    if sampling.temperature == 0.0:
        return True
    return (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, None)


class LogprobsMode:
    """Whether a server's log-probabilities are of the distribution it samples from, as probed."""

    def __init__(self, wire: EngineHttp) -> None:
        self._wire = wire
        self._of_the_draw: bool | None = None
        self._asking = asyncio.Lock()

    async def tells_draw(self, sampling: SamplingParams) -> bool:
        """Whether what it reports under these settings is of the distribution sampled from."""
        if is_plain(sampling):
            return True
        async with self._asking:
            if self._of_the_draw is None:
                self._of_the_draw = await self._ask()
            return self._of_the_draw

    def forget(self) -> None:
        """The server failed, and what comes back at its address may be started differently."""
        self._of_the_draw = None

    async def _ask(self) -> bool:
        status, text = await self._wire.post("/v1/completions", _PROBE)
        if status != 200:
            refused = refusal(self._wire.name, status, text.decode(errors="replace"))
            if refused.retryable:
                raise refused
        elif min(self._values(text), default=0.0) < RULED_OUT:
            return True
        # Also where the server is not allowed to answer, because then nothing is known of it.
        _log.warning(
            "engine %s: its log-probabilities leave temperature, top-p and top-k out, so none are"
            " recorded; start vLLM with --logprobs-mode processed_logprobs",
            self._wire.name,
        )
        return False

    def _values(self, text: bytes) -> list[float]:
        return [
            value
            for choice in decoded(self._wire.name, _COMPLETION, text).choices
            for token in choice.logprobs.top_logprobs
            for value in token.values()
        ]


NOTHING_SAID = 500
"""The code of an error that names none."""


class _VllmLogprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _VllmChoice(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _VllmLogprobs | None = None
    finish_reason: str | None = None
    text: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_VllmChoice] = []
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
    """Client of one vLLM server; it does not say which weights sampled a token of a completion."""

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
            fields = vllm_stream(ask, of_vllm(ask.sampling))
            body = self._wire.body(fields, ids_as="prompt", ask=ask)
            # Closing the stream drops the connection, which makes vLLM abort.
            async with aclosing(self._wire.stream("/v1/completions", body)) as events:
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
            version=http.version(said),
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
        logprobs = http.check(self._name, ids, values)
        http.check_echo(self._name, choice.prompt_token_ids)
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
