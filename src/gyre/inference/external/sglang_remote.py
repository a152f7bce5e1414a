"""SGLang as a cell's server: its native wire, and its orders in both generations of their API.

From 0.5.23 on weights are received between `begin_weight_update` and `end_weight_update`; servers
that do not know these paths are told to receive right away.

Events name the weights that the server has when it tells tokens, not those that sampled them. So a
pause ends all requests, and once it is over each call goes on with a new one.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from gyre.inference.clients import answer
from gyre.inference.clients.sglang import SglangEngine, request_id
from gyre.inference.clients.wire import EngineHttp, decoded, refusal
from gyre.inference.external.remote import ServerCapacity
from gyre.inference.external.resumed import ContinuedRequest
from gyre.inference.external.sglang_group import (
    HOST,
    Named,
    WeightGroup,
    beside,
    buckets,
    described,
)
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor

NO_SUCH_PATH = 404
IDLE_S = 30.0
"""How long the last passes may take once all calls are ended."""


class _ModelInfo(msgspec.Struct):
    weight_version: str | int | None = None


class _ServerInfo(msgspec.Struct):
    max_total_num_tokens: int
    max_req_input_len: int | None = None
    """A prompt has fewer tokens: some places are kept free."""
    context_length: int | None = None
    page_size: int | None = None
    tp_size: int = 1
    pp_size: int = 1


class _Done(msgspec.Struct):
    success: bool = True
    message: str = ""


_MODEL_INFO = msgspec.json.Decoder(_ModelInfo)
_SERVER_INFO = msgspec.json.Decoder(_ServerInfo)
_DONE = msgspec.json.Decoder(_Done)


class SglangServerApi:
    """One SGLang server; its key is with the session."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession) -> None:
        self._name = name
        self._session = session
        self._wire = EngineHttp(EngineName(name), url, session)
        self._engine = SglangEngine(EngineName(name), url, session)
        self._group: WeightGroup | None = None
        self._numbers = itertools.count()
        self._calls: dict[str, ContinuedRequest] = {}
        self._is_paused = False
        self._changed = asyncio.Condition()

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        call = self._calls[ask.id] = ContinuedRequest(ask)
        try:
            while not call.is_over:
                if not await self._has_turn(call):
                    yield Chunk(ids=[], logprobs=[], finish="abort")
                    return
                async with aclosing(self._engine.generate(call.rest())) as chunks:
                    async for chunk in chunks:
                        yield call.take(chunk)
        finally:
            del self._calls[ask.id]

    async def answers(self) -> bool:
        return (await self._wire.get("/health"))[0] == 200

    async def room(self) -> ServerCapacity:
        info = await self._info()
        block_tokens = info.page_size or 1
        limits = (info.max_total_num_tokens, info.context_length, info.max_req_input_len)
        return ServerCapacity(
            context_tokens=min(one for one in limits if one is not None),
            blocks=info.max_total_num_tokens // block_tokens,
            block_tokens=block_tokens,
        )

    async def abort(self, ask_id: str) -> None:
        call = self._calls.get(ask_id)
        if call is None:
            return
        async with self._changed:
            call.is_wanted = False
            self._changed.notify_all()
        await self._post("/abort_request", {"rid": request_id(call.request)})

    async def pause(self) -> None:
        """No request is left, and only then can the cache be emptied."""
        self._is_paused = True
        for call in self._calls.values():
            call.is_cut = True
        await self._post("/pause_generation", {"mode": "retract"})
        await self._post("/abort_request", {"abort_all": True})
        # Both are answered before they are done, and this after that.
        await self._info()

    async def resume(self) -> None:
        await self._post("/continue_generation", {})
        async with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    async def reload(self, folder: Path, *, version: int, keep_kv: bool) -> None:
        order = {
            "model_path": str(folder),
            "weight_version": str(version),
            "flush_cache": not keep_kv,
        }
        await self._post("/update_weights_from_disk", order)

    async def receive(
        self, tensors: "Iterable[tuple[str, Tensor]]", *, version: int, keep_kv: bool
    ) -> None:
        """Through a group of gloo, bucket by bucket."""
        group = await self._joined()
        has_sessions = await self._begin()
        try:
            parts = list(buckets(tensors))
            for number, part in enumerate(parts, start=1):
                is_last = number == len(parts)
                await self._send(
                    group, part, version=version, flush=is_last and not keep_kv, is_last=is_last
                )
        finally:
            if has_sessions:
                await self._post("/end_weight_update", {})

    async def version(self) -> int | None:
        status, text = await self._wire.get("/model_info")
        if status == NO_SUCH_PATH:
            status, text = await self._wire.get("/get_model_info")
        self._check(status, "/model_info", text)
        return answer.version(decoded(self._name, _MODEL_INFO, text).weight_version)

    async def release(self) -> None:
        # It ends itself when it is asked for memory that calls hold; this waits until none does.
        await self._post(f"/flush_cache?timeout={IDLE_S:g}", {})
        await self._post("/release_memory_occupation", {})

    async def restore(self) -> None:
        await self._post("/resume_memory_occupation", {})

    async def close(self) -> None:
        if self._group is not None:
            self._group.drop()
        await self._engine.close()
        await self._session.close()

    async def _has_turn(self, call: ContinuedRequest) -> bool:
        """Whether anybody still waits for the call, once it may be asked."""
        async with self._changed:
            await self._changed.wait_for(lambda: not (self._is_paused and call.is_wanted))
        return call.is_wanted

    async def _joined(self) -> WeightGroup:
        """A group with every worker, made when weights are first sent."""
        if self._group is not None:
            return self._group
        info = await self._info()
        num_workers = info.tp_size * info.pp_size
        group = WeightGroup(f"gyre-{next(self._numbers)}")
        order = {
            "master_address": HOST,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": num_workers + 1,
            "group_name": group.name,
            "backend": "gloo",
        }
        await asyncio.gather(
            self._post("/init_weights_update_group", order),
            beside(partial(group.join, num_workers)),
        )
        self._group = group
        return group

    async def _begin(self) -> bool:
        """Whether the server has sessions; then one is open."""
        status, text = await self._wire.post("/begin_weight_update", b"{}")
        if status == NO_SUCH_PATH:
            return False
        self._check(status, "/begin_weight_update", text)
        return True

    async def _send(
        self, group: WeightGroup, part: Named, *, version: int, flush: bool, is_last: bool
    ) -> None:
        order = {**described(part), "group_name": group.name, "flush_cache": flush}
        if is_last:
            order["weight_version"] = str(version)
        try:
            await asyncio.gather(
                self._post("/update_weights_from_distributed", order),
                beside(partial(group.send, [one for _, one in part])),
            )
        except EngineError:
            # Nobody knows where its members stand; the next weights go through another.
            group.drop()
            self._group = None
            raise

    async def _info(self) -> _ServerInfo:
        status, text = await self._wire.get("/server_info")
        if status == NO_SUCH_PATH:
            status, text = await self._wire.get("/get_server_info")
        self._check(status, "/server_info", text)
        return decoded(self._name, _SERVER_INFO, text)

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        status, text = await self._wire.post(path, msgspec.json.encode(body))
        self._check(status, path, text)
        if text.startswith(b"{"):
            done = decoded(self._name, _DONE, text)
            if not done.success:
                raise EngineError(f"engine {self._name}: {path}: {done.message}")

    def _check(self, status: int, path: str, text: bytes) -> None:
        if status != 200:
            raise refusal(self._name, status, f"{path}: {text.decode(errors='replace')}")
