"""Tiled and FlexAttention implementations and their kernels.

The attention kernels beneath torch's own, called by name for the log-sum-exp they give and take.

Given the output and log-sum-exp over more keys than they see, the backward kernels yield the exact
share of the keys they see; so attention over a path can be computed in parts and merged.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gyre.model.packed_batch import PackedBatch, PackSegment

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


_aten: Any = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs like q (1, heads, T, d), and the log-sum-exp (1, heads, T) of each query's scores."""
    if not q.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        return found[0], found[1]
    found = _aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return found[0], found[1].squeeze(-1)


def merged(one: Tensor, one_lse: Tensor, two: Tensor, two_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over two sets of keys from the softmax over each."""
    lse = torch.logaddexp(one_lse, two_lse)
    left, right = (torch.exp(part - lse).unsqueeze(-1) for part in (one_lse, two_lse))
    return (one * left + two * right).to(one.dtype), lse


def back(
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
    """Gradients of queries, keys and values through the keys given here."""
    lse = lse.contiguous()
    found: tuple[Tensor, Tensor, Tensor]
    if not q.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, scale=scale
        )
        return found
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    found = _aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, out, lse.unsqueeze(-1), seed, seed, None, None, None,
        q.shape[2], k.shape[2], 0.0, causal, scale=scale,
    )  # fmt: skip
    return found


T = TypeVar("T")


class LiveObjects(Generic[T]):
    """The objects behind one operator's handles."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: WeakValueDictionary[int, T] = WeakValueDictionary()

    def enter(self, one: T) -> Tensor:
        """Its handle: a tensor, because compiled code takes a number as a constant."""
        number = next(self._numbers)
        self._held[number] = one
        return torch.tensor(number)

    def __getitem__(self, handle: Tensor) -> T:
        return self._held[int(handle)]


Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The queries of one segment, with the last few tokens of the path before them.

    Its sizes are multiples of a grain, so that few kernels serve packs of all lengths.
    """

    rows: Indices
    """Tokens of the square, in path order; the last is repeated to fill it up. Repeated rows come
    after the real ones, which therefore do not see them."""
    first: int
    last: int
    """rows[first:last] are the segment; those before are context, those after padding."""
    context: Indices
    """Tokens of the path before the square."""

    @property
    def num_pairs(self) -> float:
        """Query-key pairs that are computed, half of the square among them."""
        return len(self.rows) * (len(self.rows) / 2 + len(self.context))


def tiles(segments: Sequence[PackSegment], grain: int) -> list[Tile]:
    """One tile per segment."""
    made = []
    for one in segments:
        spans = [np.arange(begin, end) for begin, end in one.ancestors]
        path = np.concatenate(spans) if spans else np.empty(0, np.int64)
        cut = len(path) // grain * grain
        rows = np.concatenate([path[cut:], np.arange(one.begin, one.end)])
        filled = np.concatenate([rows, np.full(-len(rows) % grain, rows[-1])])
        made.append(Tile(rows=filled, first=len(path) - cut, last=len(rows), context=path[:cut]))
    return made


def pairs_in_blocks(tout: NDArray[np.integer], block: int) -> float:
    """Query-key pairs of the square blocks in which anything is visible."""
    last_query = np.maximum.reduceat(tout, np.arange(0, len(tout), block)) - 1
    first_block = np.arange(len(last_query))
    return float((last_query // block - first_block + 1).sum()) * block * block


GRAIN = 512
"""Sizes of tiles are multiples of this, because cuDNN takes 0.1 s to plan for a new size; packs
are padded to it, so that a single row is one tile as it stands."""

_live: LiveObjects["TileAttention"] = LiveObjects()


class _Chosen:
    """Some tokens of the pack; where they are one range, taking them copies nothing."""

    def __init__(self, indices: NDArray[np.int64], device: torch.device) -> None:
        begin, size = int(indices[0]), len(indices)
        is_range = bool((np.diff(indices) == 1).all())
        self.range = slice(begin, begin + size) if is_range else None
        self._indices = None if is_range else torch.from_numpy(indices).to(device)

    def take(self, values: Tensor) -> Tensor:
        if self._indices is None:
            return values[self.range]
        return values.index_select(0, self._indices)

    def add(self, into: Tensor, values: Tensor) -> None:
        if self._indices is None:
            into[self.range] += values
        else:
            into.index_add_(0, self._indices, values.to(into.dtype))

    def put(self, into: Tensor, values: Tensor) -> None:
        if self._indices is None:
            into[self.range] = values
        else:
            into.index_copy_(0, self._indices, values)


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A tile on its device; T is the pack's dimension 0 in all it takes from and adds to."""

    rows: _Chosen
    """Where they are one range it may run into other segments behind its own; their queries are
    not kept here."""
    mine: _Chosen
    """The segment."""
    keep: slice
    """Which of the rows are the segment's."""
    is_whole: bool
    """Whether all of them are."""
    context: _Chosen | None


def _work(tile: Tile, num_tokens: int, device: torch.device) -> _Work:
    rows, size = tile.rows, len(tile.rows)
    if rows[0] + size <= num_tokens and bool((np.diff(rows[: tile.last]) == 1).all()):
        rows = np.arange(rows[0], rows[0] + size)
    return _Work(
        rows=_Chosen(rows, device),
        mine=_Chosen(tile.rows[tile.first : tile.last], device),
        keep=slice(tile.first, tile.last),
        is_whole=tile.first == 0 and tile.last == size,
        context=_Chosen(tile.context, device) if len(tile.context) else None,
    )


class TileAttention:
    """Squares and what is before them, each by one kernel, merged by their log-sum-exp."""

    def __init__(self, plan: Sequence[Tile], num_tokens: int, device: torch.device) -> None:
        self._works = [_work(tile, num_tokens, device) for tile in plan]
        self.handle = _live.enter(self)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        operator: Any = torch.ops.gyre.tile_attention
        return operator(query, key, value, self.handle, scale)[0]  # type: ignore[no-any-return]

    @property
    def _is_one(self) -> bool:
        """Whether one tile is all there is, and is taken as it stands."""
        return len(self._works) == 1 and self._works[0].rows.range is not None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Queries, keys and values (T, heads, d) to outputs alike and log-sum-exps (T, heads)."""
        if self._is_one:
            return _attend(q, k, v, scale, causal=True)
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=_wide(q))
        for work in self._works:
            rows = work.rows.take(q)
            found, weight = _attend(rows, work.rows.take(k), work.rows.take(v), scale, causal=True)
            if work.context is not None:
                keys, values = work.context.take(k), work.context.take(v)
                far = _attend(rows, keys, values, scale, causal=False)
                found, weight = merged(found, weight, *far)
            work.mine.put(out, found[work.keep])
            work.mine.put(lse, weight[work.keep])
        return out, lse

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values, each set of keys by a pass of its own."""
        q, k, v, out, lse = saved
        if self._is_one:
            return _back(grad, q, k, v, out, lse, scale, causal=True)
        of_query = torch.empty_like(q)
        of_key, of_value = (torch.zeros_like(one, dtype=_wide(one)) for one in (k, v))
        for work in self._works:
            take = work.rows.take
            rows, whole, part, weight = (take(one) for one in (q, out, grad, lse))
            if not work.is_whole:
                part, weight = _only(part, work.keep, 0.0), _only(weight, work.keep, torch.inf)
            near = _back(part, rows, take(k), take(v), whole, weight, scale, causal=True)
            mine = near[0][work.keep]
            work.rows.add(of_key, near[1])
            work.rows.add(of_value, near[2])
            if work.context is not None:
                keys, values = work.context.take(k), work.context.take(v)
                far = _back(part, rows, keys, values, whole, weight, scale, causal=False)
                mine = mine + far[0][work.keep]
                work.context.add(of_key, far[1])
                work.context.add(of_value, far[2])
            work.mine.put(of_query, mine)
        return of_query, of_key.to(k.dtype), of_value.to(v.dtype)


def _only(values: Tensor, keep: slice, rest: float) -> Tensor:
    """A copy in which the rows that are not kept are `rest`.

    A log-sum-exp of infinity gives a query no weight anywhere, with any keys it meets here.
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
    out, lse = _live[handle].forward(q, k, v, scale)
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
    found = _live[handle].backward(grad[0], given, scale)
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
