"""Attention over a pack on CUDA: in tiles or in blocks, whichever computes it sooner."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from gyre.model.bushy import BLOCK, TreeAttention
from gyre.model.network import Attend
from gyre.model.packed_batch import PackedBatch
from gyre.model.plans import pairs_in_blocks, tiles
from gyre.model.tiled import GRAIN, TileAttention

TILE_SPEED = 1.35
"""Pairs that tiles compute while blocks compute one, forward and backward on an H200."""
NARROW = (torch.bfloat16, torch.float16)
"""What cuDNN's kernels take."""
_IN_TILES = ContextVar("in_tiles", default=False)


@contextmanager
def in_tiles() -> Iterator[None]:
    """Types that tiles can compute are in tiles, for who compiles nothing.

    Blocks that are not compiled hold all scores at once.
    """
    token = _IN_TILES.set(True)
    try:
        yield
    finally:
        _IN_TILES.reset(token)


def cuda_attention(packed: PackedBatch, dtype: torch.dtype) -> Attend:
    """Only blocks compute wide types, and only they give the same bits each time."""
    if dtype not in NARROW or torch.are_deterministic_algorithms_enabled():
        return TreeAttention(packed)
    plan = tiles(packed.segments, GRAIN)
    pairs = sum(one.num_pairs for one in plan)
    if not _IN_TILES.get() and pairs > TILE_SPEED * pairs_in_blocks(packed.tout, BLOCK):
        return TreeAttention(packed)
    return TileAttention(plan, packed.num_tokens, packed.device)
