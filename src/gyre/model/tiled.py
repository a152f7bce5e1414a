"""Attention over a pack in few large kernels: squares at the ends of paths, and what is before."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from gyre.model.kernels import attend, back, merged
from gyre.model.plans import Tile

GRAIN = 512
"""Sizes of tiles are multiples of this, because cuDNN takes 0.1 s to plan for a new size; packs
are padded to it, so that a single row is one tile as it stands."""

_numbers = itertools.count()
_live: WeakValueDictionary[int, "TileAttention"] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A tile on its device."""

    rows: Tensor
    keep: slice
    context: Tensor | None
    range: slice | None
    """The rows where they are one range, so that taking them copies nothing."""

    def take(self, values: Tensor) -> Tensor:
        if self.range is not None:
            return values[:, :, self.range]
        return values.index_select(2, self.rows)

    def add(self, into: Tensor, values: Tensor) -> None:
        if self.range is not None:
            into[:, :, self.range] += values
        else:
            into.index_add_(2, self.rows, values.to(into.dtype))


def _work(tile: Tile, device: torch.device) -> _Work:
    begin, end = int(tile.rows[0]), int(tile.rows[-1]) + 1
    is_range = end - begin == len(tile.rows) and bool((np.diff(tile.rows) == 1).all())
    return _Work(
        rows=torch.from_numpy(tile.rows).to(device),
        keep=slice(tile.first, tile.last),
        context=torch.from_numpy(tile.context).to(device) if len(tile.context) else None,
        range=slice(begin, end) if is_range else None,
    )


class TileAttention:
    """Squares and what is before them, each by cuDNN, merged by their log-sum-exp."""

    def __init__(self, plan: Sequence[Tile], device: torch.device) -> None:
        self._works = [_work(tile, device) for tile in plan]
        number = next(_numbers)
        _live[number] = self
        # A tensor, because compiled layers take its value as given and a number as a constant.
        self.handle = torch.tensor(number)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        operator: Any = torch.ops.gyre.tile_attention
        return operator(query, key, value, self.handle, scale)[0]  # type: ignore[no-any-return]

    @property
    def _is_whole(self) -> bool:
        """Whether one tile is all there is, and is taken as it stands."""
        return len(self._works) == 1 and self._works[0].range is not None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Output like q, and log-sum-exp (1, heads, T) of each query's scores."""
        if self._is_whole:
            return attend(q, k, v, scale, causal=True)
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:3], dtype=_wide(q))
        for work in self._works:
            rows = work.take(q)
            found, weight = attend(rows, work.take(k), work.take(v), scale, causal=True)
            if work.context is not None:
                keys, values = (one.index_select(2, work.context) for one in (k, v))
                far = attend(rows, keys, values, scale, causal=False)
                found, weight = merged(found, weight, *far)
            mine = work.rows[work.keep]
            out.index_copy_(2, mine, found[:, :, work.keep])
            lse.index_copy_(2, mine, weight[:, :, work.keep])
        return out, lse

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values.

        A kernel that is given the output and log-sum-exp over all keys yields the exact share of
        the keys it sees, so each set of keys takes its own backward pass.
        """
        q, k, v, out, lse = saved
        if self._is_whole:
            return back(grad, q, k, v, out, lse, scale, causal=True)
        into = [torch.zeros_like(one, dtype=_wide(one)) for one in (q, k, v)]
        for work in self._works:
            rows, whole = work.take(q), work.take(out)
            weight = work.take(lse)
            part = work.take(grad)
            if work.keep != slice(0, len(work.rows)):
                part = torch.zeros_like(rows)
                part[:, :, work.keep] = grad.index_select(2, work.rows[work.keep])
            near = back(part, rows, work.take(k), work.take(v), whole, weight, scale, causal=True)
            for total, piece in zip(into, near, strict=True):
                work.add(total, piece)
            if work.context is None:
                continue
            keys, values = (one.index_select(2, work.context) for one in (k, v))
            far = back(part, rows, keys, values, whole, weight, scale, causal=False)
            work.add(into[0], far[0])
            into[1].index_add_(2, work.context, far[1].to(into[1].dtype))
            into[2].index_add_(2, work.context, far[2].to(into[2].dtype))
        return into[0].to(q.dtype), into[1].to(k.dtype), into[2].to(v.dtype)


def _wide(values: Tensor) -> torch.dtype:
    """The type of sums: keys of a shared prefix gather gradients from many tiles."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


# The operators: outputs and gradients are (1, T, heads, d), as their neighbours lay them out.


def _swapped(values: Sequence[Tensor]) -> Iterator[Tensor]:
    return (one.transpose(1, 2).contiguous() for one in values)


def _like(values: Sequence[Tensor]) -> Iterator[Tensor]:
    for one in values:
        batch, heads, tokens, size = one.shape
        yield one.new_empty((batch, tokens, heads, size))


@torch.library.custom_op("gyre::tile_attention", mutates_args=())
def _tile_attention(
    query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse = _live[int(handle)].forward(query, key, value, scale)
    (found,) = _swapped([out])
    return found, lse.contiguous()


@_tile_attention.register_fake
def _tile_attention_shape(
    query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    (out,) = _like([query])
    return out, query.new_empty(query.shape[:3], dtype=_wide(query))


@torch.library.custom_op("gyre::tile_attention_backward", mutates_args=())
def _tile_attention_backward(
    grad: Tensor, saved: Sequence[Tensor], handle: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, out, lse = saved
    tensors = (query, key, value, out.transpose(1, 2), lse)
    of_query, of_key, of_value = _swapped(
        _live[int(handle)].backward(grad.transpose(1, 2), tensors, scale)
    )
    return of_query, of_key, of_value


@_tile_attention_backward.register_fake
def _tile_attention_backward_shape(
    grad: Tensor, saved: Sequence[Tensor], handle: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, of_value = _like(saved[:3])
    return of_query, of_key, of_value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, handle, scale = inputs
    ctx.save_for_backward(query, key, value, *output, handle)
    ctx.scale = scale


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *saved, handle = ctx.saved_tensors
    operator: Any = torch.ops.gyre.tile_attention_backward
    found = operator(grad, saved, handle, ctx.scale)
    return (*(one.transpose(1, 2) for one in found), None, None)


_tile_attention.register_autograd(_differentiate, setup_context=_save)
