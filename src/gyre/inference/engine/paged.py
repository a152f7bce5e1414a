"""Attention of a pass over paged keys and values on CUDA, as one operator compilers see whole."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gyre.inference.engine.kv_cache import KvCache
from gyre.model.live import LiveObjects
from gyre.model.network import ModelDims

BLOCK_TOKENS = 128
"""Tokens of a cache block, whose keys lie together and are read in long runs."""

_live: LiveObjects["PagedBatch"] = LiveObjects()


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """D calls that compute one token each, the first rows of their pass."""

    blocks: Tensor
    """(D, most), int32: each call's, in order, and then any."""
    lengths: Tensor
    """(D), int32: how many tokens its query sees."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillBatch:
    """Calls that compute several tokens each, the rows after those."""

    queries: Tensor
    """(P + 1), int32: where each call's queries begin, counted from the first call's."""
    keys: Tensor
    """(P + 1), int32: where each call's keys begin among those gathered."""
    slots: Tensor
    """Of all their keys, in order."""
    most_queries: int
    most_keys: int


class PagedBatch:
    """The calls of one pass, or of one captured graph: where their keys are and who sees them."""

    def __init__(
        self,
        store: KvCache,
        slots: Tensor,
        *,
        decoding: DecodeBatch | None,
        prefilling: PrefillBatch | None,
    ) -> None:
        self._store = store
        self._slots = slots
        self._decoding = decoding
        self._prefilling = prefilling
        self.handle = _live.enter(self)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        operator: Any = torch.ops.gyre.paged_attention
        return operator(query, key, value, layer, self.handle, scale)  # type: ignore[no-any-return]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Writes the pass's keys and values, then attends; the shapes are those of Attend."""
        held = self._store.layer(layer)
        _reading().write(held, self._slots, _by_rows(key[0]), _by_rows(value[0]))
        num = 0 if self._decoding is None else len(self._decoding.lengths)
        parts = []
        if self._decoding is not None:
            parts.append(_decode(self._decoding, query[0, :, :num], held, scale))
        if self._prefilling is not None:
            parts.append(_prefill(self._prefilling, query[0, :, num:], held, scale))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)


@torch.library.custom_op("gyre::paged_attention", mutates_args=())
def _paged_attention(
    query: Tensor, key: Tensor, value: Tensor, layer: int, handle: Tensor, scale: float
) -> Tensor:
    return _live[handle].attend(layer, query, key, value, scale)


@_paged_attention.register_fake
def _paged_attention_shape(
    query: Tensor, key: Tensor, value: Tensor, layer: int, handle: Tensor, scale: float
) -> Tensor:
    batch, heads, tokens, size = query.shape
    return query.new_empty((batch, tokens, heads, size))


@cache
def _reading() -> Any:
    # Triton, which it is written in, comes with torch for CUDA and with no other.
    return import_module("gyre.inference.engine.reading")


def try_out(shape: ModelDims, dtype: torch.dtype, device: torch.device) -> None:
    """RuntimeError where the device cannot run the kernels for heads of this shape."""
    sizes = (shape.heads, shape.kv_heads, shape.head_dim)
    _reading().try_out(*sizes, dtype, device, BLOCK_TOKENS)


def _decode(calls: DecodeBatch, query: Tensor, held: Tensor, scale: float) -> Tensor:
    """Queries (heads, D, d) to (D, heads, d); keys are read where they lie."""
    rows = _by_rows(query).transpose(0, 1)
    found: Tensor = _reading().attend(rows, held, calls.blocks, calls.lengths, scale, BLOCK_TOKENS)
    return found


def _by_rows(vectors: Tensor) -> Tensor:
    """The same, with the numbers of each vector next to each other."""
    return vectors if vectors.stride(-1) == 1 else vectors.contiguous()


def _prefill(calls: PrefillBatch, query: Tensor, held: Tensor, scale: float) -> Tensor:
    """Queries (heads, T, d) to (T, heads, d); each call's keys are gathered once."""
    keys = held[0].index_select(1, calls.slots).transpose(0, 1)
    values = held[1].index_select(1, calls.slots).transpose(0, 1)
    kernel: Any = torch.ops.aten._flash_attention_forward
    # Its causal mask is aligned to the last query and the last key of each call.
    found: Tensor = kernel(
        query.transpose(0, 1), keys, values, calls.queries, calls.keys,
        calls.most_queries, calls.most_keys, 0.0, True, False, scale=scale,
    )[0]  # fmt: skip
    return found
