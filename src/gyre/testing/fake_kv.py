"""Cached blocks without a cache: which tokens count as computed, and values that follow from them.

Rule 1: the values of a token follow from the weights' version and all tokens up to it, so what
arrives from another engine can be told from what it must be (SPEC 2.3).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gyre.config.sections import EngineConfig
from gyre.inference.engine.block_manager import BlockManager, Digest, extend_chain
from gyre.inference.engine.engine import BLOCK_TOKENS
from gyre.inference.engine.request import KVBlocks, Pin
from gyre.inference.engine.scheduler import SequenceState
from gyre.testing.script import logprobs
from gyre.types.errors import ConfigError, EngineError, OutOfMemory

LAYERS, HEADS, HEAD_DIM = 1, 1, 4
BYTES_PER_TOKEN = LAYERS * 2 * HEADS * HEAD_DIM * 4


def values(tokens: "array[int]", version: int) -> Tensor:
    """(layers, 2, kv_heads, tokens, head_dim) of tokens from their beginning, exact in float32."""
    chained = torch.tensor(logprobs(version.to_bytes(8, "little"), tokens), dtype=torch.float32)
    places = torch.arange(1, LAYERS * 2 * HEADS * HEAD_DIM + 1, dtype=torch.float32)
    return chained[:, None] * places.reshape(LAYERS, 2, HEADS, 1, HEAD_DIM)


@dataclass(frozen=True, slots=True)
class _Held:
    tokens: "array[int]"
    blocks: list[int]
    version: int


class FakeKvCache:
    """Blocks of calls, found again by their tokens, held by pins, and moved as real ones are."""

    def __init__(self, num_blocks: int, block_tokens: int, root: Digest) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._root = root
        self._cache = BlockManager(num_blocks)
        self._pins: dict[int, _Held] = {}
        self._last_pin = 0

    @classmethod
    def of(cls, section: EngineConfig, context_tokens: int, root: Digest) -> Self:
        """Of the size that the section says, or for as many calls as it runs."""
        block_tokens = BLOCK_TOKENS if section.block_tokens is None else section.block_tokens
        most = section.capacity * context_tokens
        tokens = most if section.kv_tokens is None else section.kv_tokens
        if tokens < block_tokens:
            expected = f"expected a block of {block_tokens}, found {tokens}"
            raise ConfigError(f"engine.kv_tokens: {expected}")
        return cls(tokens // block_tokens, block_tokens, root)

    @property
    def num_tokens(self) -> int:
        """Those there is space for."""
        return self.num_blocks * self.block_tokens

    @property
    def num_available(self) -> int:
        return self._cache.num_available

    def missing(self, call: SequenceState) -> list[Digest]:
        """Digests of the full blocks that a call would have to compute."""
        findable = self._findable(call)
        return findable[len(self._cache.find(findable)) :]

    def begin(self, call: SequenceState, num_tokens: int) -> bool:
        """Whether so many tokens fit; then the call has their blocks, and those found."""
        found = self._cache.find(self._findable(call))
        wanted = -(-num_tokens // self.block_tokens) - len(found)
        if wanted > self._cache.num_available - self._cache.num_kept_of(found):
            return False
        self._cache.retain(found)
        call.blocks = found + (self._cache.take(wanted) or [])
        call.num_named = len(found)
        call.num_computed = len(found) * self.block_tokens
        return True

    def compute(self, call: SequenceState, num_tokens: int) -> int:
        """So many tokens of the call are computed, and findable in full blocks; how many more."""
        more = num_tokens - call.num_computed
        call.num_computed = num_tokens
        self._extend(call)
        for index in range(call.num_named, num_tokens // self.block_tokens):
            self._cache.name(call.blocks[index], call.chain[index])
            call.num_named = index + 1
        return more

    def drop(self, call: SequenceState) -> None:
        """The call is over; its full blocks stay findable until others need them."""
        self._cache.release(call.blocks)
        call.blocks = []

    def forget(self, root: Digest, calls: Sequence[SequenceState]) -> None:
        """Nothing is computed under the new root; calls and pins keep their blocks."""
        self._root = root
        self._cache.forget()
        for call in calls:
            call.chain.clear()
            call.num_computed = call.num_named = 0

    def clear(self) -> None:
        """All memory is given back, that of pins too."""
        self._cache = BlockManager(self.num_blocks)
        self._pins.clear()

    def pin_call(self, call: SequenceState, version: int) -> Pin:
        blocks = call.blocks[: call.num_computed // self.block_tokens]
        return self._hold(call.tokens, blocks, version)

    def pin_prefix(self, tokens: "array[int]", version: int) -> Pin:
        return self._hold(tokens, self._cache.find(self._chain(tokens)), version)

    def export(self, pin: Pin) -> KVBlocks:
        held = self._pins.get(pin.id)
        if held is None:
            raise EngineError(f"pin {pin.id}: released, or lost when the engine rested")
        return KVBlocks(
            token_ids=held.tokens.tobytes(),
            version=held.version,
            values=values(held.tokens, held.version),
        )

    def take_in(self, given: KVBlocks, version: int) -> Pin:
        """Whole blocks of what is given are findable and pinned.

        EngineError for values that are not the tokens' own: other weights computed them, or none.
        """
        tokens = array("i")
        tokens.frombytes(given.token_ids)
        _check(given, tokens, version)
        chain = self._chain(tokens)
        blocks = self._cache.take(len(chain))
        if blocks is None:
            left = f"{self._cache.num_available} of {self.num_blocks} left"
            raise OutOfMemory(f"{len(chain)} blocks taken in: {left}")
        for block, digest in zip(blocks, chain, strict=True):
            self._cache.name(block, digest)
        pin = self._hold(tokens, blocks, version)
        self._cache.release(blocks)
        return pin

    def release(self, pin: Pin) -> None:
        held = self._pins.pop(pin.id, None)
        if held is not None:
            self._cache.release(held.blocks)

    def _hold(self, tokens: "array[int]", blocks: list[int], version: int) -> Pin:
        self._cache.retain(blocks)
        self._last_pin += 1
        num_tokens = len(blocks) * self.block_tokens
        self._pins[self._last_pin] = _Held(tokens[:num_tokens], list(blocks), version)
        return Pin(id=self._last_pin, num_tokens=num_tokens)

    def _findable(self, call: SequenceState) -> list[Digest]:
        self._extend(call)
        # The last token is always computed: sampling needs what comes out of it.
        return call.chain[: (len(call.tokens) - 1) // self.block_tokens]

    def _extend(self, call: SequenceState) -> None:
        extend_chain(call.chain, call.tokens, root=self._root, block_tokens=self.block_tokens)

    def _chain(self, tokens: "array[int]") -> list[Digest]:
        chain: list[Digest] = []
        extend_chain(chain, tokens, root=self._root, block_tokens=self.block_tokens)
        return chain


def _check(given: KVBlocks, tokens: "array[int]", version: int) -> None:
    if given.version != version:
        raise EngineError(f"blocks of weights {given.version}: these are weights {version}")
    expected = values(tokens, version)
    if given.values.shape != expected.shape:
        found = f"expected shape {tuple(expected.shape)}, found {tuple(given.values.shape)}"
        raise EngineError(f"blocks: {found}", retryable=False)
    wrong = (given.values != expected).flatten(0, 2).any(-1).any(0).nonzero()
    if len(wrong):
        found = f"values of token {int(wrong[0])} are not those of the tokens up to it"
        raise EngineError(f"blocks: {found}", retryable=False)
