"""Keys and values of all layers, by slot: token n of block b lies in slot b * block_tokens + n."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gyre.model.network import ModelDims
from gyre.types.errors import InternalError, OutOfMemory

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
    except RuntimeError as error:
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
        except RuntimeError as error:
            raise OutOfMemory(f"a copy of {len(blocks)} blocks: no room: {error}") from error

    def fill(self, blocks: Sequence[int], values: Tensor) -> None:
        """Puts what `read` gave, of this or another store, into the blocks."""
        try:
            self.values.index_copy_(3, self._slots(blocks), values.to(self._device, self._dtype))
        except RuntimeError as error:
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
        except RuntimeError as error:
            message = f"keys and values of {self.num_slots} tokens: no room for {self.num_bytes} B"
            raise OutOfMemory(message) from error

    def _slots(self, blocks: Sequence[int]) -> Tensor:
        first = torch.tensor(blocks, dtype=torch.int64, device=self._device) * self.block_tokens
        inside = torch.arange(self.block_tokens, device=self._device)
        return (first[:, None] + inside).flatten()
