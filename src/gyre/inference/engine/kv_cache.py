"""Keys and values of all layers by slot, and blocks of them that are pinned for other engines.

Token n of block b lies in slot b * block_tokens + n.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gyre.inference.engine.block_manager import extend_chain
from gyre.inference.engine.request import KVBlocks, Pin
from gyre.inference.engine.scheduler import BatchScheduler, SequenceState
from gyre.model.network import ModelDims
from gyre.types.errors import EngineError, InternalError, OutOfMemory

CUDA_FRACTION = 0.9
"""Of the free device memory; the rest is for the tensors of a pass."""
ID_BYTES = 4
HOST_BYTES = 2 * 2**30
"""Most that is taken on a CPU when the settings do not say how much."""


def kv_bytes_per_token(shape: ModelDims, dtype: torch.dtype) -> int:
    return shape.kv_values_per_token * dtype.itemsize


def carried_bytes(shape: ModelDims, num_tokens: int) -> int:
    """Most that so many tokens take on their way: ids, and keys and values in float32."""
    return num_tokens * (kv_bytes_per_token(shape, torch.float32) + ID_BYTES)


def free_bytes(device: torch.device) -> int:
    """For this process now: memory no process has, and memory torch caches without using it."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def affordable_tokens(shape: ModelDims, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens whose keys and values the device can be asked to hold."""
    if device.type == "cuda":
        num_bytes = int(torch.cuda.mem_get_info(device)[0] * CUDA_FRACTION)
    else:
        num_bytes = HOST_BYTES
    return num_bytes // kv_bytes_per_token(shape, dtype)


def move_weights(module: nn.Module, device: torch.device) -> None:
    """Every parameter is on the device; after OutOfMemory all are where they were."""
    moved: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for one in module.parameters():
            before = one.data
            one.data = before.to(device)
            moved.append((one, before))
    except (RuntimeError, MemoryError) as error:
        for one, before in moved:
            one.data = before
        raise OutOfMemory(f"weights: no room on {device}: {error}") from error
    finally:
        moved.clear()
        if device.type == "cpu" and torch.cuda.is_available():
            torch.cuda.empty_cache()


class KvCache:
    """One tensor (layers, 2, kv_heads, slots, head_dim), which can be given back and taken again.

    A run of neighbouring blocks is one view of it, so attention over such a run copies nothing.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._size = (shape.layers, 2, shape.kv_heads, num_blocks * block_tokens, shape.head_dim)
        self._dtype = dtype
        self._device = device
        self._values: Tensor | None = None
        self.allocate()

    @property
    def num_slots(self) -> int:
        return self._size[3]

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor, whether it is held or not."""
        return torch.Size(self._size).numel() * self._dtype.itemsize

    @property
    def is_held(self) -> bool:
        return self._values is not None

    @property
    def values(self) -> Tensor:
        """All of it; another tensor after each `allocate`."""
        if self._values is None:
            raise InternalError("keys and values are used while their memory is given back")
        return self._values

    def layer(self, index: int) -> Tensor:
        """Keys and values (2, kv_heads, slots, head_dim) of one layer: a view."""
        return self.values[index]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values (kv_heads, T, head_dim) into the slots (T) of one layer."""
        held = self.values[layer]
        held[0].index_copy_(1, slots, keys)
        held[1].index_copy_(1, slots, values)

    def read(self, blocks: Sequence[int]) -> Tensor:
        """A copy (layers, 2, kv_heads, T, head_dim) of what the blocks hold, in their order."""
        try:
            return self.values.index_select(3, self._slots(blocks))
        except (RuntimeError, MemoryError) as error:
            raise OutOfMemory(f"a copy of {len(blocks)} blocks: no room: {error}") from error

    def fill(self, blocks: Sequence[int], values: Tensor) -> None:
        """Puts what `read` gave, of this or another store, into the blocks."""
        try:
            self.values.index_copy_(3, self._slots(blocks), values.to(self._device, self._dtype))
        except (RuntimeError, MemoryError) as error:
            raise OutOfMemory(f"{len(blocks)} blocks taken in: no room: {error}") from error

    def release(self) -> None:
        """Gives the memory back to the device; what it held is lost."""
        self._values = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def allocate(self) -> None:
        """Takes the memory again; OutOfMemory leaves it given back."""
        if self._values is not None:
            return
        try:
            # Zeros, not what was there: masked slots are multiplied too, and 0 * NaN is NaN.
            self._values = torch.zeros(self._size, dtype=self._dtype, device=self._device)
        except (RuntimeError, MemoryError) as error:
            message = f"keys and values of {self.num_slots} tokens: no room for {self.num_bytes} B"
            raise OutOfMemory(message) from error

    def _slots(self, blocks: Sequence[int]) -> Tensor:
        first = torch.tensor(blocks, dtype=torch.int64, device=self._device) * self.block_tokens
        inside = torch.arange(self.block_tokens, device=self._device)
        return (first[:, None] + inside).flatten()


@dataclass(frozen=True, slots=True)
class _Held:
    tokens: "array[int]"
    blocks: list[int]
    version: int


class PinnedBlocks:
    """Pins: cache blocks that stay referenced while no call computes on them (SPEC 2.3).

    They are held for a while, copied out, and taken in from another engine.
    """

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
