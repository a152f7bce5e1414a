"""vLLM as a cell's server: its token wire, and the orders of its development mode."""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from safetensors.torch import save_file

from gyre.inference.clients import answer
from gyre.inference.clients.settings import of_vllm
from gyre.inference.clients.wire import EngineHttp, Field, decoded, refusal
from gyre.inference.external.remote import ServerCapacity
from gyre.inference.external.vllm_tokens import VllmStreamParser
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor

STREAM_TOKENS = 16
"""Tokens per event; a server that dies loses at most these."""
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
        body = self._wire.body(_fields(ask), ids_as="token_ids", ask=ask)
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
        return answer.version(decoded(self._name, _WEIGHT_INFO, text).weight_version)

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
        """Cached keys and values of the old weights answer nobody; running calls compute again."""
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


def _fields(ask: GenerateRequest) -> dict[str, Field]:
    settings = of_vllm(ask.sampling, stream_tokens=STREAM_TOKENS)
    return {
        "request_id": ask.id,
        # An ask names every id that ends it.
        "sampling_params": settings | {"ignore_eos": True},
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
