"""Tree attention over a pack: which implementation to use.

Attention over a pack: every token sees its own path and nothing else.

On a CPU a segment's queries meet the segment itself under a causal mask and its ancestors under
none; the two are merged by their log-sum-exp. So a shared prefix is never repeated, no mask is
ever made, and memory is linear in tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from gyre.model.attention_kernels import (
    BLOCK,
    GRAIN,
    TileAttention,
    TreeAttention,
    attend,
    back,
    merged,
    pairs_in_blocks,
    tiles,
)
from gyre.model.network import Attend
from gyre.model.packed_batch import PackedBatch, PackSegment
from gyre.types.errors import ModelError

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


def attention_for(packed: PackedBatch, dtype: torch.dtype) -> Attend:
    """Differentiable attention for forward passes of this pack, in any floating type."""
    match packed.device.type:
        case "cpu":
            return PathAttention(packed.segments)
        case "cuda":
            return cuda_attention(packed, dtype)
        case other:
            message = f"attention over packs on device {other!r}: there is one for cpu and cuda"
            raise ModelError(message)


class PathAttention:
    """Attention of one pack on a CPU."""

    def __init__(self, segments: tuple[PackSegment, ...]) -> None:
        self._segments = segments

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        attended: Tensor = _Paths.apply(query, key, value, self._segments, scale)  # type: ignore[no-untyped-call]
        return attended.transpose(1, 2)


class _Paths(torch.autograd.Function):
    """Saves inputs, outputs and log-sum-exps; the backward kernels compute weights again."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: tuple[PackSegment, ...],
        scale: float,
    ) -> Tensor:
        out = torch.empty_like(query)
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        lse = query.new_empty(query.shape[:3], dtype=wide)
        for one in segments:
            own = slice(one.begin, one.end)
            out[:, :, own], lse[:, :, own] = _attend(query, key, value, one, scale)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.segments, ctx.scale = segments, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grad_query = torch.zeros_like(query)
        # Keys of a shared prefix gather gradients from many segments, so they are summed wide.
        grad_key = torch.zeros_like(key, dtype=lse.dtype)
        grad_value = torch.zeros_like(value, dtype=lse.dtype)
        for one in ctx.segments:
            own = slice(one.begin, one.end)
            mine, found = query[:, :, own], (out[:, :, own], lse[:, :, own])
            parts: list[tuple[slice | Tensor, tuple[Tensor, Tensor], bool]] = [
                (own, (key[:, :, own], value[:, :, own]), True)
            ]
            if one.ancestors:
                before = _before(one)
                parts.append((before, (key[:, :, before], value[:, :, before]), False))
            for at, keys, causal in parts:
                of_query, of_key, of_value = back(
                    grad[:, :, own], mine, *keys, *found, ctx.scale, causal=causal
                )
                grad_query[:, :, own] += of_query
                grad_key[:, :, at] += of_key
                grad_value[:, :, at] += of_value
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, segment: PackSegment, scale: float
) -> tuple[Tensor, Tensor]:
    """A segment's outputs and the log-sum-exp of each query's scores."""
    own = slice(segment.begin, segment.end)
    queries = query[:, :, own]
    near = attend(queries, key[:, :, own], value[:, :, own], scale, causal=True)
    if not segment.ancestors:
        return near
    before = _before(segment)
    far = attend(queries, key[:, :, before], value[:, :, before], scale, causal=False)
    return merged(*near, *far)


def _before(segment: PackSegment) -> slice | Tensor:
    """Where the ancestors stand: a range where they are one, so that taking it copies nothing."""
    if len(segment.ancestors) == 1:
        return slice(*segment.ancestors[0])
    return torch.cat([torch.arange(begin, end) for begin, end in segment.ancestors])
