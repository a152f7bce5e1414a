"""An engine that plays a script at a pace, under every order that a real one takes.

Rule 1: pause stops its clock; no call gets nearer to its next tokens before `resume`.
Rule 2: an order that raises has changed nothing.
"""

import asyncio
import json
import os
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from gyre.config.sections import EngineConfig
from gyre.inference.engine.request import Capacity, KVBlocks, Pin, admitted, refusal
from gyre.model.checkpoint_store import read_manifest, verify
from gyre.model.network import Network
from gyre.model.weights import load_into
from gyre.testing.fake_kv import BYTES_PER_TOKEN, FakeKvCache
from gyre.testing.script import Coder, FastCoder, Script
from gyre.testing.timed_script import (
    PACE_OPTIONS,
    Pace,
    PausableClock,
    Player,
    TimedCall,
    read_pace,
    read_script,
    refuse_unknown,
)
from gyre.types.errors import BoundaryError, ConfigError, EngineDraining, EngineError, ModelError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest


@dataclass(slots=True)
class TokenCounts:
    """Tokens since the engine was made."""

    found: int = 0
    """Of prompts, found in its cache when their calls began."""
    prefilled: int = 0
    """Computed before sampling, or again after new weights."""
    sampled: int = 0
    exported: int = 0
    imported: int = 0


class TokenLedger:
    """The counts of one engine, and a file that many engines may share."""

    def __init__(self, engine: str, path: Path | None) -> None:
        """Raises ConfigError where the file cannot be written."""
        self.counts = TokenCounts()
        self._engine = engine
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError as error:
                raise ConfigError(f"log: {path}: {error.strerror}") from error

    def prefilled(self, ask_id: str, *, found: int, computed: int, version: int) -> None:
        self.counts.found += found
        self.counts.prefilled += computed
        self._write(event="prefill", ask=ask_id, found=found, computed=computed, version=version)

    def sampled(self, num_tokens: int) -> None:
        self.counts.sampled += num_tokens

    def exported(self, num_tokens: int, version: int) -> None:
        self.counts.exported += num_tokens
        self._write(event="export", tokens=num_tokens, version=version)

    def imported(self, num_tokens: int, version: int) -> None:
        self.counts.imported += num_tokens
        self._write(event="import", tokens=num_tokens, version=version)

    def refused(self, reason: str, version: int) -> None:
        """Blocks that were not taken in."""
        self._write(event="refuse", reason=reason, version=version)

    def loaded(self, version: int, *, keep_kv: bool) -> None:
        self._write(event="load", version=version, keep_kv=keep_kv)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, **said: str | int) -> None:
        if self._file is not None:
            line = json.dumps({"engine": self._engine, **said})
            # One write to a file opened for appending, so that lines of engines do not mix.
            os.write(self._file, line.encode() + b"\n")


ANY_VOCABULARY = 2**31 - 1
CONTEXT_TOKENS = 2**17
SOON_S = 1e-6
"""Less than a timer can wait."""
LOOK_S = 0.02
"""How often a file that a reply waits for is looked for."""
ENGINE_OPTIONS = (*PACE_OPTIONS, "log")


class TimedEngine:
    """Takes calls and orders in one event loop; calls say what the script says, chunk by chunk."""

    def __init__(
        self,
        name: str,
        script: Script,
        coder: Coder,
        *,
        section: EngineConfig | None = None,
        pace: Pace | None = None,
        model: str = "scripted",
        version: int = 0,
        network: Network | None = None,
        log: Path | None = None,
    ) -> None:
        """With a network, `load` puts weights into it, and its shape bounds what may be asked."""
        section = EngineConfig() if section is None else section
        context = CONTEXT_TOKENS if network is None else network.shape.context
        self._name = EngineName(name)
        self._coder = coder
        self._model = model
        self._network = network
        self._vocabulary = ANY_VOCABULARY if network is None else network.shape.vocabulary
        self._version = version
        self._epoch = 0
        self._pace = Pace() if pace is None else pace
        self._player = Player(script, coder, self._pace)
        self._most_running = section.capacity
        self._computed = FakeKvCache.of(section, context, self._root())
        self.context_tokens = min(context, self._computed.num_tokens)
        """Most tokens a call may have, prompt and output together."""
        self._calls: dict[str, TimedCall] = {}
        self._running: list[TimedCall] = []
        self._waiting: list[TimedCall] = []
        self._clock = PausableClock()
        self._resting = False
        self._closed = False
        self._ledger = TokenLedger(name, log)

    @property
    def name(self) -> EngineName:
        return self._name

    @property
    def counts(self) -> TokenCounts:
        return self._ledger.counts

    @property
    def kv_bytes(self) -> int:
        """Of the values of all the tokens it can hold."""
        return self._computed.num_tokens * BYTES_PER_TOKEN

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        one = self._take(ask)
        try:
            while True:
                await self._due(one)
                if self._closed:
                    raise EngineError(f"engine {self._name}: closed")
                if one.is_over:
                    yield Chunk(ids=[], logprobs=[], finish="abort")
                    return
                if not one.is_prefilled:
                    self._prefill(one)
                    continue
                chunk = self._say(one)
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            self._end(one)

    async def health(self) -> EngineHealth:
        self._refuse_closed()
        paused = "paused" if self._clock.is_paused else ""
        return EngineHealth(
            ready=not self._resting,
            version=self._version,
            model=self._model,
            detail="resting" if self._resting else paused,
        )

    async def capacity(self) -> Capacity:
        self._refuse_closed()
        return Capacity(
            running=len(self._running),
            most_running=self._most_running,
            waiting=len(self._waiting),
            blocks=self._computed.num_blocks,
            available_blocks=0 if self._resting else self._computed.num_available,
            block_tokens=self._computed.block_tokens,
            context_tokens=self.context_tokens,
        )

    async def cancel(self, ask_id: str) -> tuple[Chunk, ...]:
        """Ends an ask: everything sampled for it; nothing if it is over."""
        self._refuse_closed()
        one = self._calls.get(ask_id)
        if one is None:
            return ()
        self._end(one)
        return one.request.so_far()

    async def pause(self) -> None:
        """Nothing is said before `resume`; asks are still taken, and wait."""
        self._refuse_closed()
        self._clock.pause()

    async def resume(self) -> None:
        self._refuse_closed()
        self._clock.resume()
        self._wake_calls()
        self._begin_calls()

    async def load(
        self, source: Path | Mapping[str, Tensor], *, version: int, keep_kv: bool = False
    ) -> None:
        """Other weights, checked by their manifest if they lie in a folder that has one.

        Running calls go on: they compute their tokens again, or keep what they have (SPEC 2.4).
        """
        self._refuse_closed()
        await asyncio.to_thread(_read, source, self._network)
        self._version = version
        self._epoch += 1
        self._ledger.loaded(version, keep_kv=keep_kv)
        if not keep_kv:
            self._recompute()

    async def offload(self, *, offload_weights: bool = False) -> None:
        """Calls end with "abort", pins are lost, and asks are refused until `wake`.

        Weights stay where they are: this engine computes nothing with them.
        """
        self._refuse_closed()
        self._resting = True
        for call in list(self._calls.values()):
            self._end(call)
        self._computed.clear()

    async def wake(self) -> None:
        self._refuse_closed()
        self._resting = False

    async def pin(self, what: str | Sequence[int]) -> Pin:
        """Holds what is computed of an ask that is not over, or of a known beginning of ids."""
        self._refuse_at_rest()
        if not isinstance(what, str):
            return self._computed.pin_prefix(array("i", what), self._version)
        if what not in self._calls:
            raise EngineError(f"ask {what}: over or unknown, so it cannot be pinned")
        return self._computed.pin_call(self._calls[what].request.call, self._version)

    async def export(self, pin: Pin) -> KVBlocks:
        self._refuse_closed()
        blocks = self._computed.export(pin)
        self._ledger.exported(pin.num_tokens, self._version)
        return blocks

    async def import_(self, given: KVBlocks) -> Pin:
        """Blocks of another engine become findable and pinned, if they are what they must be."""
        self._refuse_at_rest()
        try:
            pin = self._computed.take_in(given, self._version)
        except BoundaryError as error:
            # The router has the call computed again instead, so that only this line shows it.
            self._ledger.refused(str(error), self._version)
            raise
        self._ledger.imported(pin.num_tokens, self._version)
        return pin

    async def release(self, pin: Pin) -> None:
        self._refuse_closed()
        self._computed.release(pin)
        self._begin_calls()

    async def close(self) -> None:
        """Readers that still wait get an EngineError."""
        self._closed = True
        self._wake_calls()
        self._ledger.close()

    def _take(self, ask: GenerateRequest) -> TimedCall:
        self._refuse_at_rest()
        if ask.id in self._calls:
            raise refusal(ask, "another ask with this id is not over")
        request = admitted(
            ask,
            context_tokens=self.context_tokens,
            vocabulary=self._vocabulary,
            engine_seed=0,
            decode=self._coder.decode,
        )
        one = self._player.play(request)
        self._calls[ask.id] = one
        self._waiting.append(one)
        self._begin_calls()
        return one

    async def _due(self, one: TimedCall) -> None:
        """Returns when the call has something to compute or to say, or is over."""
        await asyncio.sleep(0)  # Others have their turn, even where nothing takes time.
        while not (one.is_over or self._closed):
            if self._clock.is_paused or not one.is_running:
                await one.wait()
                continue
            left_s = one.due_s - self._clock.now_s()
            if left_s > SOON_S:
                await one.wait(left_s)
            elif one.is_held:
                await one.wait(LOOK_S)
            else:
                return

    def _begin_calls(self) -> None:
        """Calls that wait run, oldest first, as far as their tokens fit."""
        if self._clock.is_paused or self._resting:
            return
        for one in list(self._waiting):
            if len(self._running) >= self._most_running:
                return
            call = one.request.call
            missing = self._computed.missing(call)
            if missing and missing[0] in self._being_computed():
                continue  # Another call computes the same block now; then it is found.
            if not self._computed.begin(call, one.num_tokens):
                return
            self._waiting.remove(one)
            self._running.append(one)
            one.is_running = True
            one.due_s = self._clock.now_s() + self._pace.prefill_takes_s(call.num_missing)
            one.woken.set()

    def _being_computed(self) -> set[bytes]:
        """Blocks of prompts that are not computed yet."""
        # Not of calls that compute again: one whose reader is away would hold up the others.
        new = [call for call in self._running if not (call.is_prefilled or call.request.num_output)]
        calls = [call.request.call for call in new]
        return {digest for call in calls for digest in call.chain[call.num_named :]}

    def _prefill(self, one: TimedCall) -> None:
        call = one.request.call
        found = call.num_computed
        computed = self._computed.compute(call, len(call.tokens))
        self._ledger.prefilled(call.id, found=found, computed=computed, version=self._version)
        one.is_prefilled = True
        one.due_s += one.pending_s
        self._begin_calls()

    def _say(self, one: TimedCall) -> Chunk:
        chunk = one.say(self._version)
        call = one.request.call
        # What was sampled last is computed only with what follows it.
        self._computed.compute(call, len(call.tokens) - bool(chunk.ids))
        self._ledger.sampled(len(chunk.ids))
        one.due_s += one.next_chunk_s
        if chunk.finish is not None:
            self._end(one)
        return chunk

    def _recompute(self) -> None:
        """Nothing counts as computed any more, and running calls begin with that."""
        self._computed.forget(self._root(), [call.request.call for call in self._calls.values()])
        now_s = self._clock.now_s()
        for call in self._running:
            if call.is_prefilled:
                call.pending_s = max(0.0, call.due_s - now_s)
            call.is_prefilled = False
            call.due_s = now_s + self._pace.prefill_takes_s(call.request.call.num_missing)
            call.woken.set()
        self._begin_calls()

    def _end(self, one: TimedCall) -> None:
        """The call is over and its tokens are free; once for each call."""
        if one.is_over:
            return
        one.is_over = True
        one.woken.set()
        del self._calls[one.request.ask.id]
        (self._running if one.is_running else self._waiting).remove(one)
        self._computed.drop(one.request.call)
        self._begin_calls()

    def _wake_calls(self) -> None:
        for call in self._calls.values():
            call.woken.set()

    def _root(self) -> bytes:
        # Counted besides the version, because weights may be loaded twice under one number.
        return f"{self._epoch}/{self._version}".encode()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise EngineError(f"engine {self._name}: closed")

    def _refuse_at_rest(self) -> None:
        self._refuse_closed()
        if self._resting:
            raise EngineDraining(f"engine {self._name}: it rests")


def engine(
    network: Network,
    *,
    name: str,
    section: EngineConfig,
    folder: Path,
    options: Mapping[str, str],
) -> TimedEngine:
    """`script=MODULE:FUNCTION` or `script=FILE.py:FUNCTION`, a pace, and `log=FILE` if wanted."""
    refuse_unknown(options, {*ENGINE_OPTIONS, "script"})
    script = read_script(options)
    return playing(script, network, name=name, section=section, folder=folder, options=options)


def playing(
    script: Script,
    network: Network,
    *,
    name: str,
    section: EngineConfig,
    folder: Path,
    options: Mapping[str, str],
) -> TimedEngine:
    """The script with a model folder's tokenizer, under the version that the folder says."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{path}: expected the model's tokenizer, found no such file")
    manifest = read_manifest(folder)
    return TimedEngine(
        name,
        script,
        FastCoder(Tokenizer.from_file(str(path))),
        section=section,
        pace=read_pace(options),
        model=str(folder),
        version=0 if manifest is None else manifest.version,
        network=network,
        log=Path(options["log"]) if "log" in options else None,
    )


def _read(source: Path | Mapping[str, Tensor], network: Network | None) -> None:
    """The weights are whole, and in the network if there is one."""
    if network is not None:
        load_into(network, source)
    elif isinstance(source, Path):
        if not source.is_dir():
            raise ModelError(f"{source}: expected a folder with weights")
        manifest = read_manifest(source)
        if manifest is not None:
            verify(source, manifest)
