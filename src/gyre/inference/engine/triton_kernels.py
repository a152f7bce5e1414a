"""Triton kernels for paged attention and sampling.

Paged keys written, and read by one token each, with kernels of our own in Triton.

Reading, each program takes one call's keys of one head once for all queries that share it, and no
slot beyond the call's last; where calls are few, several programs share one.

Sampling on CUDA that reads the logits once: a kernel of our own weighs stretches of them.

Shapes: S rows, V tokens of the vocabulary, N stretches of it, C tokens of one.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from gyre.inference.engine.sampler import STRETCH, BatchSampling, chosen, draw

P = ParamSpec("P")
R = TypeVar("R")


def launching(act: Callable[P, R]) -> Callable[P, R]:
    """The same function; what Triton raises, which is no RuntimeError, is one."""

    @wraps(act)
    def launched(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return act(*args, **kwargs)
        except TritonError as error:
            message = f"a kernel cannot run: {type(error).__name__}: {error}"
            raise RuntimeError(message) from error

    return launched


TILE = 16_384
"""Numbers of keys that are looked at together, if a processor's own memory holds as much."""
TILE_BYTES = 4
"""Of that memory for each of them, which has a value beside it, both of two bytes."""
REST_BYTES = 2**14
"""As much of it as everything else takes where 32 queries share a head."""
ROWS = 16
"""Fewest queries that tensor cores take."""
MOST_SPLITS = 16
PROGRAMS = 16
"""For each processor: so many, because lengths are ragged and the longest call ends a pass."""
LOG2_E = 1.4426950408889634


@launching
def attend(
    query: Tensor, held: Tensor, blocks: Tensor, lengths: Tensor, scale: float, page: int
) -> Tensor:
    """Queries (D, heads, d) to outputs alike, each over the first `lengths` tokens of its blocks.

    `held` is (2, kv_heads, slots, d); `blocks` (D, most) of `page` slots each. Sizes of heads and
    of pages are powers of two, because tiles are.
    """
    calls, heads, size = query.shape
    kv_heads = held.shape[1]
    splits = splits_for(calls * kv_heads, query.device)
    out = torch.empty((calls, heads, size), dtype=query.dtype, device=query.device)
    parts = out.unsqueeze(2)
    if splits > 1:
        parts = query.new_empty((calls, heads, splits, size), dtype=torch.float32)
    weights = query.new_empty((calls, heads, splits), dtype=torch.float32)
    _read[(calls, kv_heads, splits)](
        query, held[0], held[1], parts, weights, blocks, lengths, scale * LOG2_E,
        *query.stride()[:2], held.stride(1), *parts.stride()[:3], *weights.stride()[:2],
        blocks.stride(0),
        GROUP=heads // kv_heads, ROWS=max(ROWS, triton.next_power_of_2(heads // kv_heads)),
        SIZE=size, PAGE=page, STEP=min(page, tile_for(query.device) // size), SPLITS=splits,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        _join[(calls, heads)](
            parts, weights, out, *parts.stride()[:3], *weights.stride()[:2], *out.stride()[:2],
            SIZE=size, SPLITS=splits, num_warps=1,
        )  # fmt: skip
    return out


@launching
def write(held: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Puts keys and values (kv_heads, T, d) into the slots (T) of one layer, both at once."""
    heads, tokens, size = keys.shape
    _write[(tokens, heads)](
        keys, values, held[0], held[1], slots,
        *keys.stride()[:2], *values.stride()[:2], held.stride(1),
        SIZE=size, num_warps=1,
    )  # fmt: skip


@launching
def try_out(
    heads: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device, page: int
) -> None:
    """RuntimeError where the device cannot run these kernels for such heads."""
    held = torch.zeros((2, kv_heads, page, size), dtype=dtype, device=device)
    rows = torch.zeros((1, heads, size), dtype=dtype, device=device)
    first = torch.zeros((1, 1), dtype=torch.int32, device=device)
    given = rows[0, :kv_heads].unsqueeze(1)
    write(held, first[0].long(), given, given)
    attend(rows, held, first, first[0] + 1, 1.0, page)


def tile_for(device: torch.device) -> int:
    """The largest tile that the device's processors hold, a power of two."""
    room = 2**63
    if device.type == "cuda":
        about: Any = torch.cuda.get_device_properties(device)
        room = about.shared_memory_per_block_optin
    tile = TILE
    while tile * TILE_BYTES + REST_BYTES > room:
        tile //= 2
    return tile


def splits_for(programs: int, device: torch.device) -> int:
    """How many programs share the keys of one call and head; a power of two."""
    processors = 1
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = -(-PROGRAMS * processors // programs)
    splits = 1
    while splits < min(wanted, MOST_SPLITS):
        splits *= 2
    return splits


# Compiled once for all lengths of lists of blocks, which differ from pass to pass.
@triton.jit(do_not_specialize=["block_call"])  # type: ignore[untyped-decorator]
def _read(
    query, keys, values, parts, weights, blocks, lengths, scale,
    query_call, query_head, key_head, part_call, part_head, part_split, weight_call, weight_head,
    block_call,
    GROUP: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    STEP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    call, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + call)
    steps = tl.cdiv(length, STEP)
    share = tl.cdiv(steps, SPLITS)
    row, at, inside = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, STEP)
    heads = head * GROUP + row
    is_mine = row < GROUP
    queries = tl.load(
        query + call * query_call + heads[:, None] * query_head + at[None, :],
        mask=is_mine[:, None], other=0.0,
    )  # fmt: skip
    key_base = keys + head.to(tl.int64) * key_head
    value_base = values + head.to(tl.int64) * key_head
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, SIZE], tl.float32)
    for step in range(split * share, tl.minimum((split + 1) * share, steps)):
        start = step * STEP
        block = tl.load(blocks + call * block_call + start // PAGE).to(tl.int64)
        slot = block * PAGE + start % PAGE + inside
        is_seen = start + inside < length
        key = tl.load(
            key_base + slot[None, :] * SIZE + at[:, None], mask=is_seen[None, :], other=0.0
        )
        score = tl.where(is_seen[None, :], tl.dot(queries, key) * scale, -float("inf"))
        top = tl.maximum(highest, tl.max(score, 1))
        shrink = tl.exp2(highest - top)
        weight = tl.exp2(score - top[:, None])
        value = tl.load(
            value_base + slot[:, None] * SIZE + at[None, :], mask=is_seen[:, None], other=0.0
        )
        found = found * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        total = total * shrink + tl.sum(weight, 1)
        highest = top
    # A split without keys has no weight, and must not divide by it.
    safe = tl.where(total > 0, total, 1.0)
    into = parts + call * part_call + heads[:, None] * part_head + split * part_split + at[None, :]
    tl.store(into, found / safe[:, None], mask=is_mine[:, None])
    if SPLITS > 1:
        sums = tl.where(total > 0, highest + tl.log2(safe), -float("inf"))
        tl.store(weights + call * weight_call + heads * weight_head + split, sums, mask=is_mine)


@triton.jit  # type: ignore[untyped-decorator]
def _join(
    parts, weights, out,
    part_call, part_head, part_split, weight_call, weight_head, out_call, out_head,
    SIZE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    call, head = tl.program_id(0), tl.program_id(1)
    split, at = tl.arange(0, SPLITS), tl.arange(0, SIZE)
    sums = tl.load(weights + call * weight_call + head * weight_head + split)
    weight = tl.exp2(sums - tl.max(sums, 0))
    part = tl.load(
        parts + call * part_call + head * part_head + split[:, None] * part_split + at[None, :]
    )
    found = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + call * out_call + head * out_head + at, found)


@triton.jit  # type: ignore[untyped-decorator]
def _write(
    keys, values, held_keys, held_values, slots,
    key_head, key_token, value_head, value_token, held_head,
    SIZE: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.arange(0, SIZE)
    into = head * held_head + tl.load(slots + token) * SIZE + at
    tl.store(held_keys + into, tl.load(keys + head * key_head + token * key_token + at))
    tl.store(held_values + into, tl.load(values + head * value_head + token * value_token + at))


MANY = 16
"""Stretches that one program weighs."""


def sample(logits_SV: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities (S), float32, of rows of which none is cut."""
    temperature_S, _, _, uniform_S = draws.numbers.unbind(dim=1)
    heat_S1 = torch.where(temperature_S == 0, 1.0, temperature_S).float()[:, None]
    highest_SN, sums_SN = weighed(logits_SV, heat_S1)
    highest_S1 = highest_SN.amax(dim=-1, keepdim=True)

    def scaled(at: Tensor) -> Tensor:
        return logits_SV.gather(1, at).float() / heat_S1 - highest_S1

    sums_SN = sums_SN * (highest_SN - highest_S1).exp()
    ids, total_S = draw(sums_SN, lambda at: scaled(at).exp(), uniform_S, logits_SV.shape[1])
    logprobs = scaled(ids[:, None])[:, 0] - total_S.log().float()
    return chosen(ids, logprobs, total_S, logits_SV, draws)


@launching
def weighed(logits_SV: Tensor, heat_S1: Tensor) -> tuple[Tensor, Tensor]:
    """Of each stretch (S, N) the highest logit, and the sum of likelihoods relative to it."""
    rows, tokens = logits_SV.shape
    stretches = triton.cdiv(tokens, STRETCH)
    highest_SN = heat_S1.new_empty((rows, stretches))
    sums_SN = torch.empty_like(highest_SN)
    _weigh[(rows, triton.cdiv(stretches, MANY))](
        logits_SV, heat_S1, highest_SN, sums_SN, tokens, stretches, logits_SV.stride(0),
        STRETCH=STRETCH, MANY=MANY, num_warps=4,
    )  # fmt: skip
    return highest_SN, sums_SN


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(
    logits, heat, highest, sums, tokens, stretches, logits_row,
    STRETCH: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    stretch = tl.program_id(1) * MANY + tl.arange(0, MANY)
    at = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
    values = tl.load(
        logits + row.to(tl.int64) * logits_row + at, mask=at < tokens, other=-float("inf")
    ).to(tl.float32) / tl.load(heat + row)
    top = tl.max(values, 1)
    # A stretch without a likely token weighs nothing, which is not what inf - inf is.
    shift = tl.where(top == -float("inf"), 0.0, top)
    weight = tl.sum(tl.exp(values - shift[:, None]), 1)
    is_there = stretch < stretches
    tl.store(highest + row * stretches + stretch, top, mask=is_there)
    tl.store(sums + row * stretches + stretch, weight, mask=is_there)
