"""Attention of a pass over paged keys and values on CUDA, as one operator compilers see whole."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gyre.engine.store import Store
from gyre.model.live import Live

BLOCK_TOKENS = 128
"""FlexAttention reads keys in blocks of this many, so a cache block is one of them."""

MOST_SIZES = 64
"""Numbers of calls for which decoding may be compiled, each for itself."""

_live: Live["Paged"] = Live()


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """D calls that compute one token each, the first rows of their pass."""

    num_blocks: Tensor
    """(D, 1, 1), int32."""
    blocks: Tensor
    """(D, 1, 1, most), int32: each call's, in order, and then any."""
    last: Tensor
    """(D), int32: the last of them."""
    tail: Tensor
    """(D), int32: how many tokens that one holds."""
    num_rows: int
    """Of the D calls, those that stand in the pass; the rest fill up a size met before."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefilling:
    """Calls that compute several tokens each, the rows after those."""

    queries: Tensor
    """(P + 1), int32: where each call's queries begin, counted from the first call's."""
    keys: Tensor
    """(P + 1), int32: where each call's keys begin among those gathered."""
    slots: Tensor
    """Of all their keys, in order."""
    most_queries: int
    most_keys: int


class Paged:
    """The calls of one pass, or of one captured graph: where their keys are and who sees them."""

    def __init__(
        self,
        store: Store,
        slots: Tensor,
        *,
        decoding: Decoding | None,
        prefilling: Prefilling | None,
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
        self._store.write(layer, self._slots, key[0], value[0])
        held = self._store.layer(layer)
        num = 0 if self._decoding is None else self._decoding.num_rows
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
def _flex() -> Any:
    # Only for sizes known at compile time does it take the kernel that is made for decoding.
    return torch.compile(flex_attention, dynamic=False)


def _decode(calls: Decoding, query: Tensor, held: Tensor, scale: float) -> Tensor:
    """Queries (heads, D, d) to (D, heads, d); keys are read where they lie."""
    last, tail = calls.last, calls.tail

    def visible(call: Tensor, _head: Tensor, _row: Tensor, slot: Tensor) -> Tensor:
        return (slot // BLOCK_TOKENS != last[call]) | (slot % BLOCK_TOKENS < tail[call])

    mask = BlockMask(
        (1, held.shape[2]),
        calls.num_blocks,
        calls.blocks,
        *(None, None, None, None, None, None),
        BLOCK_SIZE=(BLOCK_TOKENS, BLOCK_TOKENS),
        mask_mod=visible,
    )
    rows = functional.pad(query, (0, 0, 0, len(tail) - calls.num_rows))
    with torch._dynamo.config.patch(recompile_limit=MOST_SIZES):
        found: Tensor = _flex()(
            rows.transpose(0, 1).unsqueeze(2),
            held[0].unsqueeze(0),
            held[1].unsqueeze(0),
            block_mask=mask,
            scale=scale,
            enable_gqa=True,
            kernel_options={"BLOCK_N": BLOCK_TOKENS},
        )
    return found.squeeze(2)[: calls.num_rows]


def _prefill(calls: Prefilling, query: Tensor, held: Tensor, scale: float) -> Tensor:
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
