"""The HTTP API of a cell: a controller's orders as typed bodies, and how the cell executes them.

Rule 1: orders of the training half run one after the other, as many claims together as it takes,
but for `expose`, `save` and `checkpoint`, which read what no claim changes and must not wait for
one (SPEC 3.1).
Rule 2: an engine that computes with the trainer's own network reads no file for weights that are in
it already; they are known by their version and their digest, both.
Rule 3: an engine takes weights one after the other and never older ones, because the controller
may have given up an earlier load; and none while the trainer has the network.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import msgspec
from torch import Tensor

from gyre.batching.group_packer import unpacked
from gyre.cell.protocol import (
    ABOUT,
    BroadcastRequest,
    CellHealth,
    ClaimHeader,
    ExposedWeights,
    FormGroupsRequest,
    LeaveRequest,
    LoadedWeights,
    LoadRequest,
    OfferRequest,
    ReduceReply,
    ReduceRequest,
    SavedCheckpoint,
    SaveRequest,
    ScoreReply,
    StepRequest,
    refusal,
)
from gyre.cell.training_worker import TrainingWorker
from gyre.cell.weight_sync import CheckpointPublisher, fetched, shapes_of, whole_cuts
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.kv_transfer import KvStore
from gyre.inference.server.control_api import ControllableEngine
from gyre.inference.server.server import Server
from gyre.model.checkpoint_store import read_manifest
from gyre.model.network import Network
from gyre.model.weights import digest, digest_of
from gyre.net.http_server import ClientGone, Exchange, Receive, Scope, Send
from gyre.types.errors import (
    CellError,
    ExposureGone,
    GyreError,
    NotFound,
    RequestError,
    Unauthorized,
)
from gyre.types.protocols import Transport

PREFIX = "/cell/"
BODY_BYTES = 2**20
CLAIM_BYTES = 2**32
BODY_S = 60.0
SAVERS = 4
"""Checkpoints that are waited for together: one is written, and others wait for their turn."""
END_S = 10.0
"""How long what is under way may take to end with the cell."""
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class CellApi:
    """Executes a controller's orders on a cell; a standalone engine has no training half."""

    def __init__(
        self,
        engine: ControllableEngine,
        network: Network,
        learning: TrainingWorker | None,
        transport: Transport,
        *,
        kv_store: KvStore | None = None,
    ) -> None:
        """The KV store is where its engine lays cached blocks for others."""
        self._engine = engine
        self._kv_store = kv_store
        self._transport = transport
        self._offering = CheckpointPublisher(transport)
        self._network = network
        self._learning = learning
        self._loading = asyncio.Lock()
        """Held while the engine's weights change, or which half of the cell has them."""
        self._loaded_version = 0
        self._to_load: list[int] = []
        """Versions that its engine was ordered to load and has not, yet or at all."""
        self._has_entered = False
        """The trainer has the device."""
        most = 1
        if learning is not None and learning.claims_at_once > 1:
            # One more, so that an order waits for no claim that comes after it.
            most = learning.claims_at_once + 1
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="trainer")
        self._savers = ThreadPoolExecutor(SAVERS, thread_name_prefix="saver")
        self._acts: set[Future[Any]] = set()
        """What these threads are to do, or are doing."""
        self._orders: dict[str, Callable[[bytes], Awaitable[Any]]] = {
            "enter": self._enter,
            "leave": self._leave,
            "expose": self._expose,
            "pull": self._pull,
            "meet": self._meet,
            "reduce": self._reduce,
            "step": self._step,
            "spread": self._spread,
            "save": self._save,
            "checkpoint": self._checkpoint,
            "offer": self._offer,
            "load": self._load,
        }

    async def answer(self, exchange: Exchange) -> None:
        """Errors are the caller's to answer."""
        name = exchange.path.removeprefix(PREFIX)
        if exchange.method == "GET" and name == "health":
            found: Any = await self._health()
        elif exchange.method == "POST" and name in ("train", "score"):
            body = await exchange.body(most_bytes=CLAIM_BYTES, within_s=BODY_S)
            found = await self._claim(name, body, exchange.headers.get(ABOUT, ""))
        elif exchange.method == "POST" and name in self._orders:
            body = await exchange.body(most_bytes=BODY_BYTES, within_s=BODY_S)
            found = await self._orders[name](body)
        else:
            raise NotFound(f"{exchange.method} {exchange.path}: no such order")
        await exchange.answer(200, msgspec.json.encode(found))

    def close(self) -> None:
        """Its threads are over, unless one is still in the middle of something long by then."""
        if self._learning is not None:
            self._learning.drop()
        for threads in (self._threads, self._savers):
            threads.shutdown(wait=False, cancel_futures=True)
        if not wait(self._acts, timeout=END_S).not_done:
            for threads in (self._threads, self._savers):
                threads.shutdown()

    async def _health(self) -> CellHealth:
        """Answered beside both threads, which may be in the middle of something long."""
        health = await self._engine.health()
        learning = self._learning
        return CellHealth(
            engine_ready=health.ready,
            engine_version=health.version,
            trainer_version=None if learning is None else learning.version,
            claims_at_once=1 if learning is None else learning.claims_at_once,
        )

    async def _enter(self, body: bytes) -> Mapping[str, float]:
        """The engine rests, and then the trainer has the device (SPEC 2.3)."""
        learning = self._trains
        async with self._loading:
            self._has_entered = True
            rest_s = await _timed(self._rest(offload_weights=not learning.shares_network))
        restore_s = await _timed(self._do(learning.reload))
        return {"rest": rest_s, "restore": restore_s}

    async def _rest(self, *, offload_weights: bool) -> None:
        """What was laid for engines that never came for it is gone with all else."""
        if self._kv_store is not None:
            await asyncio.to_thread(self._kv_store.clear)
        await self._engine.offload(offload_weights=offload_weights)

    async def _leave(self, body: bytes) -> Mapping[str, float]:
        if not _read(body, LeaveRequest).keep_sum:
            await self._do(self._trains.clear)
        rest_s = await _timed(self._do(self._trains.offload))
        wake_s = await _timed(self._engine.wake())
        self._has_entered = False
        return {"rest": rest_s, "wake": wake_s}

    async def _expose(self, body: bytes) -> ExposedWeights:
        return await asyncio.to_thread(self._trains.expose)

    async def _pull(self, body: bytes) -> Mapping[str, float]:
        return {"seconds": await _timed(self._do(self._trains.pull, _read(body, ExposedWeights)))}

    async def _meet(self, body: bytes) -> Mapping[str, float]:
        asked = _read(body, FormGroupsRequest)
        return {
            "seconds": await _timed(self._do(self._trains.form_groups, asked.epoch, asked.order))
        }

    async def _reduce(self, body: bytes) -> ReduceReply:
        asked = _read(body, ReduceRequest)
        do = self._do(self._trains.reduce, asked.epoch, asked.members, asked.leases)
        return ReduceReply(num_bytes=await do)

    async def _step(self, body: bytes) -> Any:
        return await self._do(self._trains.step, _read(body, StepRequest).version)

    async def _spread(self, body: bytes) -> Mapping[str, float]:
        asked = _read(body, BroadcastRequest)
        do = self._do(self._trains.broadcast_weights, asked.epoch, asked.members, asked.version)
        return {"seconds": await _timed(do)}

    async def _save(self, body: bytes) -> SavedCheckpoint:
        asked = _read(body, SaveRequest)
        act = partial(self._trains.save, Path(asked.folder), asked.version)
        return await self._done(self._savers.submit(act))

    async def _checkpoint(self, body: bytes) -> SavedCheckpoint:
        asked = _read(body, SaveRequest)
        act = partial(self._trains.checkpoint, Path(asked.folder), asked.version)
        return await self._done(self._savers.submit(act))

    async def _load(self, body: bytes) -> LoadedWeights:
        """The engine has the weights, and says by their digest which (SPEC 2.4)."""
        asked = _read(body, LoadRequest)
        self._to_load.append(asked.version)
        try:
            async with self._loading:
                newest = max(self._loaded_version, *self._to_load)
                if asked.version < newest:
                    message = f"version {asked.version}: the engine has {newest}, or is to load it"
                    raise ExposureGone(message)
                if self._has_entered and self._trains.shares_network:
                    raise ExposureGone(f"version {asked.version}: the trainer has the network now")
                loaded = await self._loaded(asked)
                self._loaded_version = asked.version
                return loaded
        finally:
            self._to_load.remove(asked.version)

    async def _loaded(self, asked: LoadRequest) -> LoadedWeights:
        began = perf_counter()
        source: Path | Mapping[str, Tensor] = Path(asked.folder)
        own = await asyncio.to_thread(self._own, asked)
        if own is not None:
            source = own
        elif asked.given is not None:
            source = await asyncio.to_thread(self._fetched, asked, asked.given)
        else:
            await asyncio.to_thread(self._check_digest, asked)
        await self._engine.load(source, version=asked.version, keep_kv=asked.keep_kv)
        seconds = perf_counter() - began
        if own is not None:
            if self._trains.version != asked.version:
                raise CellError(f"version {asked.version} was stepped over while it was loaded")
            # Nothing was written since it was found, so that it is not asked for again.
            return LoadedWeights(digest=asked.digest, seconds=seconds)
        found = await asyncio.to_thread(digest, self._network)
        if found != asked.digest:
            raise CellError(f"{asked.folder}: expected digest {asked.digest}, found {found}")
        return LoadedWeights(digest=found, seconds=seconds)

    async def _offer(self, body: bytes) -> ExposedWeights:
        asked = _read(body, OfferRequest)
        return await asyncio.to_thread(self._offering.offered, Path(asked.folder), asked.version)

    def _own(self, asked: LoadRequest) -> Mapping[str, Tensor] | None:
        """What the network holds, if that is what is asked for; a server has a copy of its own."""
        learning = self._learning
        if learning is None or not learning.shares_network:
            return None
        if not isinstance(self._engine, EmbeddedEngine) or learning.version != asked.version:
            return None
        if digest(self._network) != asked.digest:
            return None  # An engine has loaded others over the trainer's.
        return dict(self._network.module.named_parameters())

    def _fetched(self, asked: LoadRequest, given: ExposedWeights) -> Mapping[str, Tensor]:
        """Weights of another cell's memory; others than those with the digest are refused."""
        module, dtype = self._network.module, self._network.dtype
        cuts = whole_cuts(shapes_of(module))
        tensors = fetched(self._transport, given.parts, cuts, version=asked.version)
        held = {name: one.to(dtype) for name, one in tensors.items()}
        found = digest_of(sorted(held.items()))
        if found != asked.digest:
            raise CellError(f"expected weights with digest {asked.digest}, found {found}")
        return held

    def _check_digest(self, asked: LoadRequest) -> None:
        """Other weights are refused before they take the place of those that serve."""
        manifest = read_manifest(Path(asked.folder))
        if manifest is None or manifest.dtype != str(self._network.dtype).removeprefix("torch."):
            return  # Known by its digest only once it is loaded.
        if manifest.digest != asked.digest:
            found = f"expected digest {asked.digest}, found {manifest.digest}"
            raise CellError(f"{asked.folder}: {found}")

    async def _claim(self, what: str, body: bytes, about: str) -> Any:
        asked = _read(about.encode(), ClaimHeader)
        claim = await asyncio.to_thread(unpacked, body)
        if what == "score":
            return ScoreReply(scores=await self._do(self._trains.score, claim))
        train = partial(
            self._trains.train,
            claim,
            lease=asked.lease,
            num_executions=asked.num_executions,
            scores=asked.scores,
        )
        return await self._do(train)

    @property
    def _trains(self) -> TrainingWorker:
        if self._learning is None:
            raise CellError("a standalone engine never trains", retryable=False)
        return self._learning

    async def _do(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `act` gives, done beside the loop."""
        return await self._done(self._threads.submit(act, *args, **kwargs))

    async def _done(self, act: "Future[R]") -> R:
        self._acts.add(act)
        act.add_done_callback(self._acts.discard)
        return await asyncio.wrap_future(act)


class CellApplication:
    """Routes /cell/ requests to the cell's API and all others to its engine; all need the key."""

    def __init__(self, server: Server, orders: CellApi, key: str) -> None:
        self._server = server
        self._orders = orders
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            if not exchange.path.startswith(PREFIX):
                await self._server.answer(exchange)
                return
            try:
                self._check_key(exchange)
                await self._orders.answer(exchange)
            except GyreError as error:
                await exchange.answer(_status(error), msgspec.json.encode(refusal(error)))
        except ClientGone:
            return

    def _check_key(self, exchange: Exchange) -> None:
        given = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            message = "expected the run's token"
            raise Unauthorized(message)


def _status(error: GyreError) -> int:
    return error.status if isinstance(error, RequestError) else 500


async def _timed(doing: Awaitable[Any]) -> float:
    began = perf_counter()
    await doing
    return perf_counter() - began


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"expected {kind.__name__}: {error}") from error
