"""Attention over a pack whose tree is bushy: FlexAttention with a mask made of subtrees' ends."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gyre.model.packed_batch import PackedBatch

BLOCK = 128
"""Queries and keys are masked in squares of this many; packs are padded to a multiple of it."""


@cache
def _flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


class TreeAttention:
    """FlexAttention with a mask whose blocks follow from the ends of subtrees alone."""

    def __init__(self, packed: PackedBatch) -> None:
        self._mask = block_mask(torch.from_numpy(packed.tout).to(packed.device))

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        attend: Any = flex_attention if torch.compiler.is_compiling() else _flex()
        found: Tensor = attend(
            query, key, value, block_mask=self._mask, scale=scale, enable_gqa=True
        )
        return found.transpose(1, 2)


def block_mask(tout: Tensor) -> BlockMask:
    """Blocks with anything visible, and among them those with everything."""
    num = len(tout) // BLOCK
    ends = tout.view(num, BLOCK)
    begin = torch.arange(num, device=tout.device) * BLOCK
    query, key = begin[:, None], begin[None]
    full = (key < query) & (ends.amin(1) >= query + BLOCK)
    some = (key <= query) & (ends.amax(1) > query) & ~full
    ends = tout.int()

    def visible(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < ends[column])

    return BlockMask.from_kv_blocks(
        *_listed(some),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(len(tout), len(tout)),
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, and which, those first."""
    order = torch.argsort(chosen.int(), dim=1, descending=True, stable=True)
    return chosen.sum(1).int()[None, None], order.int()[None, None]
