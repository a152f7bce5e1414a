"""Attention of one pass over cached blocks, gathered by call, on any device.

Shapes: T tokens of the pass, G calls of a group, L slots seen by each, K key-value heads, H heads
of one of them, D numbers of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gyre.inference.engine.forward import ForwardBatch
from gyre.inference.engine.kv_cache import KvCache
from gyre.types.packs import Ints

GROUP_TOKENS = 4096
"""Slots gathered at once for calls that sample: as much as stays in a processor's cache."""
MASK_TOKENS = 256
"""Tokens of a prompt that attend at once, so that their mask stays small."""


class Scratch:
    """Memory for gathered keys and values, kept from pass to pass."""

    def __init__(self, store: KvCache) -> None:
        self._store = store
        self._held: Tensor | None = None

    def gather(self, layer: int, blocks: Tensor) -> Tensor:
        """Keys and values (2, K, slots, D) of the blocks, until the next gathering."""
        held = self._store.layer(layer)
        _, heads, slots, size = held.shape
        per_block = self._store.block_tokens * size
        by_block = held.view(2 * heads, slots // self._store.block_tokens, per_block)
        count = 2 * heads * len(blocks) * per_block
        if self._held is None or len(self._held) < count:
            self._held = torch.empty(count, dtype=held.dtype, device=held.device)
        out = self._held[:count].view(2 * heads, len(blocks), per_block)
        torch.index_select(by_block, 1, blocks, out=out)
        return out.view(2, heads, -1, size)


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls that compute one token each, padded to one length."""

    rows: Tensor
    """G: tokens of the pass."""
    blocks: Tensor
    """G * blocks of the longest."""
    mask: Tensor
    """(G, 1, 1, L): 0 where a slot is seen."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Neighbouring tokens of one prompt."""

    first: int
    last: int
    blocks: Tensor
    seen: int
    """Slots seen by the last of them."""
    mask: Tensor | None
    """(tokens, seen); None: the plain triangle."""


class PagedAttention:
    """Writes a pass's keys and values into the store and attends over all that its calls have."""

    def __init__(
        self, work: ForwardBatch, store: KvCache, scratch: Scratch, dtype: torch.dtype
    ) -> None:
        self._store = store
        self._scratch = scratch
        self._device = store.values.device
        self._dtype = dtype
        self._slots = torch.from_numpy(work.slots).to(self._device, torch.int64)
        counts = np.diff(work.starts)
        self._groups = list(self._grouped(work, np.flatnonzero(counts == 1).astype(np.int32)))
        self._stretches = [
            stretch
            for call in np.flatnonzero(counts > 1).tolist()
            for stretch in self._stretched(work, call)
        ]

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        self._store.write(layer, self._slots, key[0], value[0])
        heads, kv_heads = query.shape[1], key.shape[1]
        rows_THD = query[0].transpose(0, 1)
        out_THD = torch.empty_like(rows_THD, memory_format=torch.contiguous_format)
        for group in self._groups:
            held = self._scratch.gather(layer, group.blocks)
            # Heads that share keys are rows of one query, which reads those keys once.
            count, size = len(group.rows), query.shape[-1]
            taken = rows_THD[group.rows].view(count, kv_heads, -1, size)
            keys, values = held.view(2, kv_heads, count, -1, size).transpose(1, 2)
            found = scaled_dot_product_attention(
                taken, keys, values, attn_mask=group.mask, scale=scale
            )
            out_THD[group.rows] = found.flatten(1, 2)
        for part in self._stretches:
            held = self._scratch.gather(layer, part.blocks)[:, :, : part.seen]
            taken = query[0].view(kv_heads, -1, *query.shape[2:])[:, :, part.first : part.last]
            keys, values = held.unsqueeze(2).expand(-1, -1, heads // kv_heads, -1, -1)
            found = scaled_dot_product_attention(
                taken, keys, values, attn_mask=part.mask, is_causal=part.mask is None, scale=scale
            )
            out_THD[part.first : part.last] = found.flatten(0, 1).transpose(0, 1)
        return out_THD.unsqueeze(0)

    def _grouped(self, work: ForwardBatch, calls: Ints) -> Iterator[_Group]:
        """Calls of like length together, so that little is padded."""
        block_tokens = self._store.block_tokens
        order = calls[np.argsort(work.lengths[calls], kind="stable")][::-1]
        while len(order):
            most = -(-int(work.lengths[order[0]]) // block_tokens)
            group = order[: max(1, GROUP_TOKENS // (most * block_tokens))]
            order = order[len(group) :]
            seen = np.arange(most * block_tokens) < work.lengths[group, None]
            yield _Group(
                rows=self._on(work.starts[group]),
                blocks=self._on(work.blocks[group, :most].reshape(-1)),
                mask=self._mask(seen)[:, None, None],
            )

    def _stretched(self, work: ForwardBatch, call: int) -> Iterator[_Stretch]:
        start, end = int(work.starts[call]), int(work.starts[call + 1])
        length = int(work.lengths[call])
        before = length - (end - start)
        whole = not before and length <= MASK_TOKENS
        for first in range(start, end, MASK_TOKENS):
            last = min(first + MASK_TOKENS, end)
            seen = before + last - start
            places = np.arange(before + first - start, seen)
            count = -(-seen // self._store.block_tokens)
            yield _Stretch(
                first=first,
                last=last,
                blocks=self._on(work.blocks[call, :count]),
                seen=seen,
                mask=None if whole else self._mask(np.arange(seen) <= places[:, None]),
            )

    def _on(self, values: Ints) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._device)

    def _mask(self, seen: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Tensor:
        there = torch.from_numpy(seen).to(self._device)
        # Numbers rather than booleans, which every layer would have to turn into numbers.
        return torch.zeros(there.shape, dtype=self._dtype, device=self._device).masked_fill_(
            ~there, -torch.inf
        )
