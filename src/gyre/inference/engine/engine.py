"""The engine as one thread sees it: asks in, one pass a step, tokens out, weights changed between.

Rule 1: what happens between two steps happens between two passes, even where one is on its way:
        the device takes everything in the order it was given.
Rule 2: an operation that raises has changed nothing, and the loop can be used as before.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyre.config.sections import EngineConfig
from gyre.inference.engine.block_manager import BlockManager
from gyre.inference.engine.forward import Forward, lay_out
from gyre.inference.engine.kv_cache import KvCache, PinnedBlocks, affordable_tokens, move_weights
from gyre.inference.engine.model_runner import select_forward
from gyre.inference.engine.request import (
    Capacity,
    Decode,
    KVBlocks,
    Pin,
    Report,
    Request,
    RequestFailed,
    RequestOutput,
    admitted,
    refusal,
)
from gyre.inference.engine.sampler import BatchSampling, uniforms
from gyre.inference.engine.scheduler import BatchScheduler, ScheduledPass
from gyre.model.cuda_ipc import current
from gyre.model.network import Network
from gyre.model.weights import load_into
from gyre.types.errors import ConfigError, EngineDraining, EngineError, OutOfMemory
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The values, by a copy that does not wait for the passes on their way."""
    held = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return held.to(device, non_blocking=True)


class SampledTokens:
    """Ids and log-probabilities of S rows; the ids stay on the device for the pass that follows."""

    def __init__(self, ids: Tensor, numbers_S2: Tensor) -> None:
        self.ids = ids
        self._numbers_S2 = numbers_S2
        self._arrived: torch.cuda.Event | None = None
        if numbers_S2.is_cuda:
            held = torch.empty(numbers_S2.shape, dtype=torch.float64, pin_memory=True)
            self._numbers_S2 = held.copy_(numbers_S2, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> tuple[list[int], list[float]]:
        """The numbers, once this pass is done; those launched after it go on."""
        if self._arrived is not None:
            self._arrived.synchronize()
        ids, logprobs = self._numbers_S2.T.tolist()
        return list(map(int, ids)), logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightPass:
    """A forward pass that was launched and whose tokens were not read yet."""

    turn: ScheduledPass
    requests: list[Request]
    """Of all parts."""
    wanting: list[Request]
    """Those that get a token."""
    version: int
    """Of the weights that it was launched with."""
    drawn: SampledTokens | None
    """None where no call samples a token yet."""


def draws_for(
    requests: Sequence[Request], *, num_unknown: int, vocabulary: int, device: torch.device
) -> BatchSampling:
    """How each request's next token is drawn, `num_unknown` tokens after those it has."""
    return BatchSampling.of(
        [request.way for request in requests],
        uniforms([request.seed_after(num_unknown) for request in requests]),
        vocabulary,
        pinned=device.type == "cuda",
    )


CUDA_BLOCK_TOKENS = 128
BLOCK_TOKENS = 16
MakeForward = Callable[[Network, KvCache], Forward]


class EngineCore:
    """Continuous batching over one network: add requests, step, take tokens; for one thread."""

    def __init__(
        self,
        network: Network,
        section: EngineConfig,
        *,
        model: str,
        version: int = 0,
        seed: int = 0,
        decode: Decode | None = None,
        make_forward: MakeForward | None = None,
    ) -> None:
        self._network = network
        self._device = network.device
        self._section = section
        self._model = model
        self._version = version
        self._seed = seed
        self._decode = decode
        self._store = _store(network, section)
        with current(self._device):
            self._forward = (
                select_forward(network, self._store, section)
                if make_forward is None
                else make_forward(network, self._store)
            )
        self._pins = PinnedBlocks(self._store)
        self._epoch = 0
        self._batch = self._empty_batch()
        self._requests: dict[str, Request] = {}
        self._flight: InFlightPass | None = None
        """A pass that was launched before the tokens of the one before it were looked at."""
        self._paused = False
        self._resting = False

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_tokens(self) -> int:
        """Most tokens a call may have: what the model knows and the cache holds."""
        return min(self._network.shape.context, self._store.num_slots)

    @property
    def has_calls(self) -> bool:
        return bool(self._requests)

    @property
    def is_busy(self) -> bool:
        """Whether the next step has a pass to make; what only waits for room needs an event."""
        return bool(self._batch.running) and not self._paused

    def health(self) -> EngineHealth:
        detail = "resting" if self._resting else "paused" if self._paused else ""
        return EngineHealth(
            ready=not self._resting, version=self._version, model=self._model, detail=detail
        )

    def capacity(self) -> Capacity:
        return Capacity(
            running=len(self._batch.running),
            most_running=self._section.capacity,
            waiting=len(self._batch.waiting),
            blocks=self._store.num_blocks,
            available_blocks=0 if self._resting else self._batch.cache.num_available,
            block_tokens=self._store.block_tokens,
            context_tokens=self.context_tokens,
        )

    def submit(self, ask: GenerateRequest) -> None:
        """The ask waits for its first pass; EngineError, not retryable, if it can never be served.

        Output tokens that were sampled elsewhere are continued: they end its input ids.
        """
        self._refuse_at_rest()
        if ask.id in self._requests:
            raise refusal(ask, "another ask with this id is not over")
        request = admitted(
            ask,
            context_tokens=self.context_tokens,
            vocabulary=self._network.shape.vocabulary,
            engine_seed=self._seed,
            decode=self._decode,
        )
        self._requests[ask.id] = request
        self._batch.add(request.call)

    def cancel(self, ask_id: str) -> tuple[Chunk, ...]:
        """Ends an ask: everything sampled for it, said before or not; nothing if it is over."""
        request = self._requests.pop(ask_id, None)
        if request is None:
            return ()
        request.is_over = True
        self._batch.remove(request.call)
        return request.so_far()

    @torch.inference_mode()
    def step(self) -> list[Report]:
        """One pass over the calls that are due; nothing while paused, offloaded, or without memory.

        Where the device computes by itself, the pass after it is launched before its tokens are
        looked at, on the tokens as they lie there. A call that turns out to have ended is then
        computed once more for nothing.
        """
        if self._paused or self._resting:
            return []
        with current(self._device):
            return self._passed()

    def _passed(self) -> list[Report]:
        flight, self._flight = self._flight, None
        if flight is None:
            turn = self._batch.turn()
            if not turn.parts:
                return []
            try:
                flight = self._launch(turn, self._asking(turn))
            except (RuntimeError, MemoryError) as error:
                return self._fail(turn, error)
        if self._forward.returns_early:
            self._flight = self._follow(flight)
        try:
            ids, logprobs = ([], []) if flight.drawn is None else flight.drawn.wait()
        except (RuntimeError, MemoryError) as error:
            self._flight = None
            return self._fail(flight.turn, error)
        parts = zip(flight.turn.parts, flight.requests, strict=True)
        self._batch.done([part for part, request in parts if not request.is_over])
        return [
            self._advance(request, token, logprob, flight.version)
            for request, token, logprob in zip(flight.wanting, ids, logprobs, strict=True)
            if not request.is_over
        ]

    def pause(self) -> None:
        """No pass until `resume`; asks are still taken, and wait."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def load(
        self, source: Path | Mapping[str, Tensor], *, version: int, keep_kv: bool = False
    ) -> None:
        """New weights in place of the old, from a folder or tensors by name (SPEC 2.4).

        Running calls go on: they compute their keys and values again, or keep the old ones.
        ModelError where names, shapes or numbers are wrong; the old weights then still serve.
        """
        load_into(self._network, source)
        self._forward.reload()
        self._version = version
        self._epoch += 1
        if not keep_kv:
            self._flight = None
            self._batch.restart(self._root())

    def offload(self, *, offload_weights: bool = False) -> list[Report]:
        """Gives the memory of keys and values back, and that of weights if they are not shared.

        Calls and pins are over; the reports end each call with "abort".
        """
        ended = [
            RequestOutput(id=one, chunk=Chunk(ids=[], logprobs=[], finish="abort"))
            for one in list(self._requests)
            if self.cancel(one)
        ]
        self._resting = True
        self._flight = None
        self._forward.forget()
        self._pins.drop()
        self._batch = self._empty_batch()
        if offload_weights:
            move_weights(self._network.module, torch.device("cpu"))
        self._store.release()
        return [*ended]

    def wake(self) -> None:
        """Takes the memory again; after OutOfMemory it rests as before, and may be woken later."""
        if not self._resting:
            return
        self._store.allocate()
        try:
            move_weights(self._network.module, self._device)
        except OutOfMemory:
            self._store.release()
            raise
        self._resting = False

    def pin(self, what: str | Sequence[int]) -> Pin:
        """Holds the computed blocks of an ask that is not over, or of a known beginning of ids."""
        self._refuse_at_rest()
        if not isinstance(what, str):
            return self._pins.pin_prefix(self._batch, array("i", what), self._version)
        if what not in self._requests:
            raise EngineError(f"ask {what}: over or unknown, so it cannot be pinned")
        return self._pins.pin_call(self._batch, self._requests[what].call, self._version)

    def export(self, pin: Pin) -> KVBlocks:
        """A copy of pinned blocks; EngineError once the pin is released or lost."""
        return self._pins.export(pin)

    def import_(self, given: KVBlocks) -> Pin:
        """Blocks of another engine become findable, pinned until the call that needs them runs."""
        self._refuse_at_rest()
        return self._pins.take_in(self._batch, given, self._version)

    def release(self, pin: Pin) -> None:
        self._pins.release(self._batch, pin)

    def _asking(self, turn: ScheduledPass) -> list[Request]:
        return [self._requests[part.call.id] for part in turn.parts]

    def _launch(
        self, turn: ScheduledPass, requests: list[Request], ids: Tensor | None = None
    ) -> InFlightPass:
        """Puts the pass on the device; with ids that are known only there, one for each part."""
        wanting = requests
        if ids is None:
            parts = zip(turn.parts, requests, strict=True)
            wanting = [request for part, request in parts if part.is_last]
        logits = self._forward(lay_out(turn.parts, self._store.block_tokens), ids)
        drawn = None
        if wanting:
            draws = draws_for(
                wanting,
                num_unknown=0 if ids is None else 1,
                vocabulary=self._network.shape.vocabulary,
                device=self._device,
            )
            drawn = SampledTokens(*self._forward.sample(logits, draws))
        return InFlightPass(
            turn=turn, requests=requests, wanting=wanting, version=self._version, drawn=drawn
        )

    def _follow(self, flight: InFlightPass) -> InFlightPass | None:
        """The pass after this one, launched on its tokens, if all who run are in both."""
        if flight.drawn is None or len(flight.wanting) < len(self._batch.running):
            return None
        rows = [
            row
            for row, request in enumerate(flight.wanting)
            if request.num_left > 1 and not request.is_over
        ]
        parts, requests, ids = flight.turn.parts, flight.wanting, flight.drawn.ids
        if len(rows) < len(requests):
            parts, requests = tuple(parts[row] for row in rows), [requests[row] for row in rows]
        turn = self._batch.follow(parts) if rows else None
        if turn is None:
            return None
        if len(rows) < len(ids):
            ids = ids.index_select(0, on_device(rows, self._device, torch.int64))
        try:
            return self._launch(turn, requests, ids)
        except (RuntimeError, MemoryError):
            return None  # The tokens of `flight` stand; the next step tries again and says so.

    def _advance(self, request: Request, token: int, logprob: float, version: int) -> Report:
        try:
            if logprob != logprob:
                raise refusal(request.ask, "the logits are not numbers")
            chunk = request.take(token, logprob, version)
        except EngineError as error:
            self._end(request)
            return RequestFailed(id=request.ask.id, error=error)
        if chunk.finish is not None:
            self._end(request)
        return RequestOutput(id=request.ask.id, chunk=chunk)

    def _fail(self, turn: ScheduledPass, error: RuntimeError | MemoryError) -> list[Report]:
        """The calls of a pass that the device refused are over; all others can go on."""
        failed: list[Report] = []
        for part in turn.parts:
            request = self._requests.get(part.call.id)
            if request is None or request.call is not part.call:
                continue
            self._end(request)
            found = EngineError(f"ask {part.call.id}: its pass failed: {error}")
            found.__cause__ = error
            failed.append(RequestFailed(id=part.call.id, error=found))
        return failed

    def _end(self, request: Request) -> None:
        del self._requests[request.ask.id]
        request.is_over = True
        self._batch.remove(request.call)

    def _refuse_at_rest(self) -> None:
        if self._resting:
            raise EngineDraining(f"engine of {self._model}: it rests")

    def _root(self) -> bytes:
        # Counted besides the version, because weights may be loaded twice under one number.
        return f"{self._epoch}/{self._version}".encode()

    def _empty_batch(self) -> BatchScheduler:
        return BatchScheduler(
            BlockManager(self._store.num_blocks),
            block_tokens=self._store.block_tokens,
            capacity=self._section.capacity,
            prefill_tokens=self._section.prefill_tokens,
            root=self._root(),
        )


def _store(network: Network, section: EngineConfig) -> KvCache:
    device, dtype = network.device, network.dtype
    default = CUDA_BLOCK_TOKENS if device.type == "cuda" else BLOCK_TOKENS
    block_tokens = default if section.block_tokens is None else section.block_tokens
    for name, value in (
        ("capacity", section.capacity),
        ("prefill_tokens", section.prefill_tokens),
        ("block_tokens", block_tokens),
    ):
        if value < 1:
            raise ConfigError(f"engine.{name}: expected 1 or more, found {value}")
    tokens = section.kv_tokens
    if tokens is None:
        most = section.capacity * network.shape.context
        tokens = min(most, affordable_tokens(network.shape, dtype, device))
    if tokens < block_tokens:
        raise ConfigError(f"engine.kv_tokens: expected a block of {block_tokens}, found {tokens}")
    return KvCache(
        network.shape,
        num_blocks=tokens // block_tokens,
        block_tokens=block_tokens,
        dtype=dtype,
        device=device,
    )
