"""SGLang's control and weight-update API.

SGLang as a cell's server: its native wire, and its orders in both generations of their API.

From 0.5.23 on weights are received between `begin_weight_update` and `end_weight_update`; servers
that do not know these paths get the request to receive right away.

Events name the weights that the server has when it tells tokens, not those that sampled them. So a
pause ends all requests, and once it is over each call goes on with a new one.
"""

import asyncio
import itertools
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp
import msgspec
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as groups

from gyre.inference.clients import http
from gyre.inference.clients.http import EngineHttp, decoded, refusal
from gyre.inference.clients.sglang import SglangEngine, request_id
from gyre.inference.external.engine import ServerCapacity
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, GenerateRequest


class ContinuedRequest:
    """One call over several requests, each of which goes on after what was sampled before."""

    def __init__(self, ask: GenerateRequest) -> None:
        self._ask = ask
        self._sampled = array("i")
        self._num_requests = 0
        self._is_echoed = False
        self.is_wanted = True
        """Whether the proxy waits for more."""
        self.is_cut = False
        """Whether its request was ended so that another can go on."""
        self.is_over = False

    @property
    def request(self) -> str:
        """The id of the request that is under way."""
        return f"{self._ask.id}.{self._num_requests}"

    def rest(self) -> GenerateRequest:
        """What the next request has to ask for."""
        self.is_cut = False
        self._num_requests += 1
        sampling, num_sampled = self._ask.sampling, len(self._sampled)
        return replace(
            self._ask,
            id=self.request,
            input_ids=self._ask.input_ids + self._sampled.tobytes(),
            sampling=replace(
                sampling,
                max_tokens=sampling.max_tokens - num_sampled,
                # Used twice, a seed would draw the same numbers again.
                seed=None if sampling.seed is None else sampling.seed + num_sampled,
            ),
        )

    def take(self, chunk: Chunk) -> Chunk:
        """The chunk as it is of the whole call, which a request that was cut does not end."""
        self._sampled.extend(chunk.ids)
        echo = None if self._is_echoed else chunk.prompt_ids
        if echo is not None:
            self._is_echoed = True
            echo = echo[: len(self._ask.input_ids) // 4]
        goes_on = chunk.finish == "abort" and self.is_cut and self.is_wanted
        finish = self._whole() if goes_on else chunk.finish
        self.is_over = finish is not None
        return replace(chunk, prompt_ids=echo, finish=finish)

    def _whole(self) -> str | None:
        """Why there is nothing left to ask for, although the request was cut; None if there is."""
        sampling = self._ask.sampling
        if self._sampled and self._sampled[-1] in sampling.stop_ids:
            return "stop"
        return "length" if len(self._sampled) >= sampling.max_tokens else None


HOST = "127.0.0.1"
BUCKET_BYTES = 2**29
"""Weights that are sent together; SGLang has them twice until they are loaded."""
TIMEOUT = timedelta(seconds=120)
"""How long a worker may leave the others of the group waiting."""

Named = Sequence[tuple[str, Tensor]]


class WeightGroup:
    """A torch.distributed group of the cell and its server's workers, for new weights."""

    def __init__(self, name: str) -> None:
        """Workers find it at `port` from now on."""
        self.name = name
        self._store = TCPStore(
            HOST, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT, multi_tenant=True
        )
        self.port: int = self._store.port
        self._group: Any = None

    def join(self, num_workers: int) -> None:
        """Returns once all workers have joined as well."""
        # As torch nests them for a group of this name on processors that need no accelerator.
        store = groups.PrefixStore(self.name, self._store)
        store = groups.PrefixStore("cpu/", groups.PrefixStore(f"{self.name}/", store))
        try:
            self._group = groups.ProcessGroupGloo(store, 0, num_workers + 1, TIMEOUT)
        except RuntimeError as error:
            raise EngineError(f"weights for SGLang: its workers did not join: {error}") from error

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Every worker has them, in this order."""
        options = groups.BroadcastOptions()
        options.rootRank = 0
        try:
            for one in tensors:
                self._group.broadcast([one], options).wait()
        except RuntimeError as error:
            raise EngineError(f"weights for SGLang: not sent: {error}") from error

    def drop(self) -> None:
        """Processes that wait in it fail now, not by time-out."""
        self._group = None


async def beside(act: Callable[[], None]) -> None:
    """`act` has been done, in a thread that is left behind if the caller gives up.

    A worker without a request receives nothing, and then only a time-out ends a broadcast.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: EngineError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        found = None
        try:
            act()
        except EngineError as error:
            found = error
        with suppress(RuntimeError):  # The loop may have ended meanwhile.
            loop.call_soon_threadsafe(tell, found)

    Thread(target=run, name="weights", daemon=True).start()
    await done


def buckets(
    tensors: Iterable[tuple[str, Tensor]], most_bytes: int = BUCKET_BYTES
) -> Iterator[Named]:
    """All of them in their order, as many together as fit; one that is larger goes alone."""
    held: list[tuple[str, Tensor]] = []
    for name, one in tensors:
        if held and sum(other.nbytes for _, other in held) + one.nbytes > most_bytes:
            yield held
            held = []
        held.append((name, one))
    if held:
        yield held


def described(named: Named) -> dict[str, list[Any]]:
    """Names, types and shapes that SGLang gets before the tensors come."""
    return {
        "names": [name for name, _ in named],
        "dtypes": [str(one.dtype).removeprefix("torch.") for _, one in named],
        "shapes": [list(one.shape) for _, one in named],
    }


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
        return http.version(decoded(self._name, _MODEL_INFO, text).weight_version)

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
        """Whether the proxy still waits for the call, once it may be asked."""
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
            # Where its members stand is unknown; the next weights go through another.
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
