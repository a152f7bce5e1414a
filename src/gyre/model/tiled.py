"""Attention over a pack in few large kernels: squares at the ends of paths, and what is before."""

import itertools
from collections.abc import Sequence
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
    """A tile on its device; T is the pack's dimension 0 in all it takes from and adds to."""

    rows: Tensor
    keep: slice
    """Which of the rows are the segment's."""
    context: Tensor | None
    range: slice | None
    """The rows where they are one range, so that taking them copies nothing; behind the segment
    it may run into others, whose queries are not kept here."""

    @property
    def is_whole(self) -> bool:
        return self.keep == slice(0, len(self.rows))

    def take(self, values: Tensor) -> Tensor:
        return values[self.range] if self.range is not None else values.index_select(0, self.rows)

    def add(self, into: Tensor, values: Tensor) -> None:
        if self.range is not None:
            into[self.range] += values
        else:
            into.index_add_(0, self.rows, values.to(into.dtype))


def _work(tile: Tile, num_tokens: int, device: torch.device) -> _Work:
    begin, size = int(tile.rows[0]), len(tile.rows)
    real = tile.rows[: tile.last]
    is_range = begin + size <= num_tokens and bool((np.diff(real) == 1).all())
    return _Work(
        rows=torch.from_numpy(np.arange(begin, begin + size) if is_range else tile.rows).to(device),
        keep=slice(tile.first, tile.last),
        context=torch.from_numpy(tile.context).to(device) if len(tile.context) else None,
        range=slice(begin, begin + size) if is_range else None,
    )


class TileAttention:
    """Squares and what is before them, each by one kernel, merged by their log-sum-exp."""

    def __init__(self, plan: Sequence[Tile], num_tokens: int, device: torch.device) -> None:
        self._works = [_work(tile, num_tokens, device) for tile in plan]
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
    def _is_one(self) -> bool:
        """Whether one tile is all there is, and is taken as it stands."""
        return len(self._works) == 1 and self._works[0].range is not None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Queries, keys and values (T, heads, d) to outputs alike and log-sum-exps (T, heads)."""
        if self._is_one:
            return _attend(q, k, v, scale, causal=True)
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=_wide(q))
        for work in self._works:
            rows = work.take(q)
            found, weight = _attend(rows, work.take(k), work.take(v), scale, causal=True)
            if work.context is not None:
                keys, values = (one.index_select(0, work.context) for one in (k, v))
                far = _attend(rows, keys, values, scale, causal=False)
                found, weight = merged(found, weight, *far)
            mine = work.rows[work.keep]
            out.index_copy_(0, mine, found[work.keep])
            lse.index_copy_(0, mine, weight[work.keep])
        return out, lse

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values, each set of keys by a pass of its own."""
        q, k, v, out, lse = saved
        if self._is_one:
            return _back(grad, q, k, v, out, lse, scale, causal=True)
        into = [torch.zeros_like(one, dtype=_wide(one)) for one in (q, k, v)]
        for work in self._works:
            rows, whole, part, weight = (work.take(one) for one in (q, out, grad, lse))
            if not work.is_whole:
                part, weight = _only(part, work.keep, 0.0), _only(weight, work.keep, torch.inf)
            near = _back(part, rows, work.take(k), work.take(v), whole, weight, scale, causal=True)
            for total, piece in zip(into, near, strict=True):
                work.add(total, piece)
            if work.context is None:
                continue
            keys, values = (one.index_select(0, work.context) for one in (k, v))
            far = _back(part, rows, keys, values, whole, weight, scale, causal=False)
            work.add(into[0], far[0])
            into[1].index_add_(0, work.context, far[1].to(into[1].dtype))
            into[2].index_add_(0, work.context, far[2].to(into[2].dtype))
        return into[0].to(q.dtype), into[1].to(k.dtype), into[2].to(v.dtype)


def _only(values: Tensor, keep: slice, rest: float) -> Tensor:
    """A copy in which the rows that are not kept are `rest`.

    A log-sum-exp of infinity gives a query no weight anywhere, whatever keys it meets here.
    """
    found = torch.full_like(values, rest)
    found[keep] = values[keep]
    return found


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    q, k, v = _heads_first(q), _heads_first(k), _heads_first(v)
    out, lse = attend(q, k, v, scale, causal=causal)
    return out[0].transpose(0, 1), lse[0].t()


def _back(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out = (_heads_first(one) for one in (grad, q, k, v, out))
    found = back(grad, q, k, v, out, lse.t().unsqueeze(0), scale, causal=causal)
    of_query, of_key, of_value = (one[0].transpose(0, 1) for one in found)
    return of_query, of_key, of_value


def _heads_first(values: Tensor) -> Tensor:
    """(T, heads, d) as the kernels want it, (1, heads, T, d): a view."""
    return values.transpose(0, 1).unsqueeze(0)


def _wide(values: Tensor) -> torch.dtype:
    """The type of sums: keys of a shared prefix gather gradients from many tiles."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


# The operators: queries, keys, values and their gradients are (1, heads, T, d), outputs are
# (1, T, heads, d), as their neighbours lay them out in memory.


def _tokens_first(values: Tensor) -> Tensor:
    """(1, heads, T, d) as (T, heads, d), one token's values together."""
    return values[0].transpose(0, 1).contiguous()


@torch.library.custom_op("gyre::tile_attention", mutates_args=())
def _tile_attention(
    query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    q, k, v = _tokens_first(query), _tokens_first(key), _tokens_first(value)
    out, lse = _live[int(handle)].forward(q, k, v, scale)
    return out.contiguous().unsqueeze(0), lse.contiguous()


@_tile_attention.register_fake
def _tile_attention_shape(
    query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    batch, heads, tokens, size = query.shape
    out = query.new_empty((batch, tokens, heads, size))
    return out, query.new_empty((tokens, heads), dtype=_wide(query))


@torch.library.custom_op("gyre::tile_attention_backward", mutates_args=())
def _tile_attention_backward(
    grad: Tensor, saved: Sequence[Tensor], handle: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, out, lse = saved
    given = (*(_tokens_first(one) for one in (query, key, value)), out[0], lse)
    found = _live[int(handle)].backward(grad[0], given, scale)
    of_query, of_key, of_value = (one.contiguous().unsqueeze(0) for one in found)
    return of_query, of_key, of_value


@_tile_attention_backward.register_fake
def _tile_attention_backward_shape(
    grad: Tensor, saved: Sequence[Tensor], handle: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, of_value = (
        one.new_empty((one.shape[0], one.shape[2], one.shape[1], one.shape[3])) for one in saved[:3]
    )
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
