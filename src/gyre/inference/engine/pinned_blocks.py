"""Cached blocks held for a while, copied out, and taken in from another engine (SPEC 2.3)."""

from array import array
from dataclasses import dataclass

from gyre.inference.engine.block_manager import extend_chain
from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.engine.request import KVBlocks, Pin
from gyre.inference.engine.scheduler import BatchScheduler, SequenceState
from gyre.types.errors import EngineError, OutOfMemory


@dataclass(frozen=True, slots=True)
class _Held:
    tokens: "array[int]"
    blocks: list[int]
    version: int


class PinnedBlocks:
    """Pins: cache blocks that stay referenced while no call computes on them."""

    def __init__(self, store: KvCache) -> None:
        self._store = store
        self._held: dict[int, _Held] = {}
        self._last = 0

    def pin_call(self, batch: BatchScheduler, call: SequenceState, version: int) -> Pin:
        """Holds the full blocks that are computed of a call, also after the call has ended."""
        blocks = call.blocks[: call.num_computed // self._store.block_tokens]
        return self._hold(batch, call.tokens, list(blocks), version)

    def pin_prefix(self, batch: BatchScheduler, tokens: "array[int]", version: int) -> Pin:
        """Holds what is findable of the tokens from their beginning."""
        return self._hold(batch, tokens, batch.cache.find(self._chain(batch, tokens)), version)

    def export(self, pin: Pin) -> KVBlocks:
        """A copy of what the pin holds."""
        held = self._held.get(pin.id)
        if held is None:
            raise EngineError(f"pin {pin.id}: released, or lost when the engine rested")
        values = self._store.read(held.blocks)
        return KVBlocks(token_ids=held.tokens.tobytes(), version=held.version, values=values)

    def take_in(self, batch: BatchScheduler, given: KVBlocks, version: int) -> Pin:
        """Puts whole blocks of what is given into the cache, findable and pinned.

        Raises EngineError, retryable, for what other weights or another model computed, and
        OutOfMemory where calls hold too many blocks; a call then computes its prompt instead.
        """
        tokens = array("i")
        tokens.frombytes(given.token_ids)
        self._check(given, len(tokens), version)
        count = len(tokens) // self._store.block_tokens
        blocks = batch.cache.take(count)
        if blocks is None:
            room = batch.cache.num_available
            raise OutOfMemory(f"{count} blocks taken in: {room} of {batch.cache.num_blocks} left")
        if blocks:
            kept = given.values[:, :, :, : count * self._store.block_tokens]
            try:
                self._store.fill(blocks, kept)
            except OutOfMemory:
                batch.cache.release(blocks)
                raise
        chain = self._chain(batch, tokens)
        for block, digest in zip(blocks, chain, strict=True):
            batch.cache.name(block, digest)
        pin = self._hold(batch, tokens, blocks, version)
        batch.cache.release(blocks)
        return pin

    def release(self, batch: BatchScheduler, pin: Pin) -> None:
        """Once for each pin; the blocks stay findable until others need them."""
        held = self._held.pop(pin.id, None)
        if held is not None:
            batch.cache.release(held.blocks)

    def drop(self) -> None:
        """The memory behind all pins is gone."""
        self._held.clear()

    def _hold(
        self, batch: BatchScheduler, tokens: "array[int]", blocks: list[int], version: int
    ) -> Pin:
        batch.cache.retain(blocks)
        self._last += 1
        num_tokens = len(blocks) * self._store.block_tokens
        self._held[self._last] = _Held(tokens[:num_tokens], blocks, version)
        return Pin(id=self._last, num_tokens=num_tokens)

    def _check(self, given: KVBlocks, num_tokens: int, version: int) -> None:
        if given.version != version:
            raise EngineError(f"blocks of weights {given.version}: these are weights {version}")
        layers, two, heads, _, size = self._store.values.shape
        expected = (layers, two, heads, num_tokens, size)
        if tuple(given.values.shape) != expected:
            message = f"blocks: expected shape {expected}, found {tuple(given.values.shape)}"
            raise EngineError(message, retryable=False)

    def _chain(self, batch: BatchScheduler, tokens: "array[int]") -> list[bytes]:
        chain: list[bytes] = []
        extend_chain(chain, tokens, root=batch.root, block_tokens=self._store.block_tokens)
        return chain
