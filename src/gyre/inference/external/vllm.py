"""vLLM's control and weight-update API.

vLLM's stream of tokens read back: ids, log-probabilities, and whose weights sampled them.

vLLM names versions when a request ends. While its weights have not changed since it began, they
are known before that; what comes later is held back until the end.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from safetensors.torch import save_file

from gyre.inference.clients import http
from gyre.inference.clients.http import EngineHttp, decoded, of_vllm, refusal, vllm_stream
from gyre.inference.external.engine import ServerCapacity
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor


NOTHING_SAID = 500
"""The code of an error that names none."""


class _Token(msgspec.Struct):
    token_id: int
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Span(msgspec.Struct):
    version: str | int
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_EVENT = msgspec.json.Decoder(_Event)


class VllmStreamParser:
    """One stream read so far."""

    def __init__(self, engine: str, *, prompt_tokens: int) -> None:
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        self._taken = 0
        self._said = 0
        """How many of the tokens taken were handed on, each with the version of its time."""
        self._versions: list[tuple[int, int]] = []
        """Of what was handed on: versions, and how many tokens each has."""
        self._held: list[Chunk] = []
        self._final: list[Chunk] | None = None

    def feed(self, data: bytes, version: int | None) -> Iterator[Chunk]:
        """The chunks of this event; `version` is None when weights have changed meanwhile."""
        event = decoded(self._engine, _EVENT, data)
        if event.error is not None:
            code = event.error.code
            status = code if isinstance(code, int) else NOTHING_SAID
            raise refusal(self._engine, status, event.error.message)
        if event.usage is not None:
            self._compare(event.usage)
        for choice in event.choices:
            yield from self._take(choice, event.prompt_token_ids, version)

    def last(self) -> Iterator[Chunk]:
        """What the last event reports; EngineError if there was none."""
        if self._final is None:
            raise self._garbage("the stream ended without a finish reason")
        yield from self._final

    def _take(
        self, choice: _Choice, echo: list[int] | None, version: int | None
    ) -> Iterator[Chunk]:
        ids = choice.token_ids or []
        content = (choice.logprobs.content if choice.logprobs is not None else None) or []
        if [one.token_id for one in content] != ids:
            raise self._garbage("log-probabilities that are not of its ids")
        logprobs = http.check(self._engine, ids, [one.logprob for one in content])
        http.check_echo(self._engine, echo)
        self._taken += len(ids)
        chunk = Chunk(ids=ids, logprobs=logprobs, version=version, prompt_ids=echo)
        if choice.finish_reason is not None:
            self._held.append(chunk)
            self._final = list(self._ended(choice))
        elif version is None or self._held:
            # An empty chunk is a sign of life.
            self._held.append(chunk)
            yield Chunk(ids=[], logprobs=[])
        else:
            self._said += len(ids)
            self._versions.append((version, len(ids)))
            yield chunk

    def _ended(self, choice: _Choice) -> Iterator[Chunk]:
        """What was held back, cut where versions change, with the finish on the last."""
        finish = choice.finish_reason
        if finish not in ("stop", "length", "abort"):
            raise self._garbage(f"finish reason {finish!r}")
        told = self._told(choice.weight_versions or [])
        self._check_said(told)
        ids = [one for chunk in self._held for one in chunk.ids]
        logprobs = [one for chunk in self._held for one in chunk.logprobs or []]
        echo = next((one.prompt_ids for one in self._held if one.prompt_ids is not None), None)
        start = 0
        for version, end in _runs(told[self._said :]):
            yield Chunk(
                ids=ids[start:end],
                logprobs=logprobs[start:end],
                version=version,
                prompt_ids=echo,
            )
            start, echo = end, None
        yield Chunk(ids=[], logprobs=[], finish=finish, prompt_ids=echo)

    def _told(self, spans: Sequence[_Span]) -> list[int | None]:
        """The version of every token taken."""
        # Added up first, because what an engine says may be of any length.
        total = sum(max(0, one.end - one.start) for one in spans)
        if total != self._taken:
            raise self._garbage(f"versions of {total} of {self._taken} tokens")
        return [http.version(one.version) for one in spans for _ in range(one.start, one.end)]

    def _check_said(self, told: Sequence[int | None]) -> None:
        """Checks that tokens passed on before the end have the versions that the end reports."""
        said = [version for version, count in self._versions for _ in range(count)]
        if said != list(told[: self._said]):
            raise self._garbage("another version of tokens than it had when they came")

    def _compare(self, usage: _Usage) -> None:
        if usage.prompt_tokens != self._prompt_tokens:
            raise EngineError(
                f"engine {self._engine}: it read {usage.prompt_tokens} prompt tokens of the"
                f" {self._prompt_tokens} it was sent",
                retryable=False,
            )
        if usage.completion_tokens != self._taken:
            raise self._garbage(f"{self._taken} of {usage.completion_tokens} tokens it sampled")

    def _garbage(self, found: str) -> EngineError:
        return EngineError(f"engine {self._engine}: {found}")


def _runs(versions: Sequence[int | None]) -> Iterator[tuple[int | None, int]]:
    """Each version with the place after its last token in a row."""
    for place, version in enumerate(versions, start=1):
        if place == len(versions) or versions[place] != version:
            yield version, place


_BLOCKS = re.compile(
    rb'^vllm:cache_config_info\{[^}]*?block_size="(\d+)"[^}]*?'
    rb'num_gpu_blocks="(\d+)"',
    re.MULTILINE,
)


class _Model(msgspec.Struct):
    max_model_len: int


class _Models(msgspec.Struct):
    data: list[_Model]


class _WeightInfo(msgspec.Struct):
    weight_version: str | int | None = None


_MODELS = msgspec.json.Decoder(_Models)
_WEIGHT_INFO = msgspec.json.Decoder(_WeightInfo)


class VllmServerApi:
    """One vLLM server, started with `--logprobs-mode processed_logprobs`."""

    def __init__(
        self, name: str, url: str, session: aiohttp.ClientSession, *, share: Path, version: int
    ) -> None:
        """Weights in memory go through a file in `share`, which lies in memory too."""
        self._name = name
        self._wire = EngineHttp(EngineName(name), url, session)
        self._session = session
        self._share = share
        self._version = version
        self._num_changes = 0
        """How often weights were changed, or begun to be."""
        self._has_line = False

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        reading = VllmStreamParser(self._name, prompt_tokens=len(ask.input_ids) // 4)
        began = self._num_changes
        # An ask names every id that ends it.
        settings = of_vllm(ask.sampling) | {"ignore_eos": True}
        fields = vllm_stream(ask, {"sampling_params": settings})
        body = self._wire.body(fields, ids_as="token_ids", ask=ask)
        # Closing the stream drops the connection, upon which vLLM aborts the request.
        async with aclosing(self._wire.stream("/inference/v1/generate", body)) as events:
            async for event in events:
                version = self._version if self._num_changes == began else None
                for chunk in reading.feed(event, version):
                    yield chunk
        for chunk in reading.last():
            yield chunk

    async def answers(self) -> bool:
        return (await self._wire.get("/health"))[0] == 200

    async def room(self) -> ServerCapacity:
        models = await self._get("/v1/models")
        metrics = await self._get("/metrics")
        found = _BLOCKS.search(metrics)
        if found is None:
            raise EngineError(f"engine {self._name}: /metrics says nothing of its cache")
        return ServerCapacity(
            context_tokens=decoded(self._name, _MODELS, models).data[0].max_model_len,
            blocks=int(found[2]),
            block_tokens=int(found[1]),
        )

    async def abort(self, ask_id: str) -> None:
        await self._post("/abort_requests", {"request_ids": [_request_id(ask_id)]})

    async def pause(self) -> None:
        await self._post("/pause", query={"mode": "keep", "clear_cache": "false"})

    async def resume(self) -> None:
        await self._post("/resume")

    async def reload(self, folder: Path, *, version: int, keep_kv: bool) -> None:
        self._num_changes += 1
        order = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._post("/collective_rpc", order)
        await self.name_version(version)
        await self._flush(keep_kv)

    async def receive(
        self, tensors: "Iterable[tuple[str, Tensor]]", *, version: int, keep_kv: bool
    ) -> None:
        """Through our plug-in (`vllm_weights`), which reads the file that is laid for it."""
        self._num_changes += 1
        if not self._has_line:
            await self._post("/init_weight_transfer_engine", {"init_info": {}})
            self._has_line = True
        path = self._share / f"{self._name}-weights.safetensors"
        try:
            laid = await asyncio.to_thread(_lay, path, tensors)
            await self._post("/start_weight_update")
            update = {"path": str(path), "num_bytes": laid}
            await self._post("/update_weights", {"update_info": update})
            await self._post("/finish_weight_update", {"weight_version": str(version)})
        finally:
            path.unlink(missing_ok=True)
        self._version = version
        await self._flush(keep_kv)

    async def version(self) -> int | None:
        text = await self._get("/weight_info")
        return http.version(decoded(self._name, _WEIGHT_INFO, text).weight_version)

    async def name_version(self, version: int) -> None:
        await self._post("/update_weight_version", {"new_version": str(version)})
        self._version = version

    async def release(self) -> None:
        await self._post("/sleep", query={"level": "1"})

    async def restore(self) -> None:
        await self._post("/wake_up")
        # Going to sleep pauses it, and waking does not undo that everywhere.
        await self._post("/resume")

    async def close(self) -> None:
        await self._session.close()

    async def _flush(self, keep_kv: bool) -> None:
        """No call uses cached keys and values of the old weights; running calls compute again."""
        if not keep_kv:
            await self._post("/reset_prefix_cache", query={"reset_running_requests": "true"})

    async def _get(self, path: str) -> bytes:
        return self._checked(path, *await self._wire.get(path))

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> None:
        where = path if query is None else f"{path}?{urlencode(query)}"
        self._checked(path, *await self._wire.post(where, msgspec.json.encode(body or {})))

    def _checked(self, path: str, status: int, text: bytes) -> bytes:
        if status != 200:
            raise refusal(self._name, status, f"{path}: {text.decode(errors='replace')}")
        return text


def _lay(path: Path, tensors: "Iterable[tuple[str, Tensor]]") -> int:
    save_file(dict(tensors), path)
    return path.stat().st_size


def _request_id(ask_id: str) -> str:
    """Of an ask, inside vLLM."""
    return f"generate-tokens-{ask_id}"
