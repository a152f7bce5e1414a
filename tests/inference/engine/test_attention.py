"""Attention over blocks is attention over the tokens they hold, wherever the blocks lie."""

import random
from array import array

import pytest
import torch

from gyre.inference.engine.forward import lay_out
from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.engine.model_runner import GROUP_TOKENS, MASK_TOKENS, PagedAttention, Scratch
from gyre.inference.engine.scheduler import ScheduledChunk, SequenceState
from gyre.model.network import ModelDims

BLOCK = 16
HEADS, KV_HEADS, SIZE = 4, 2, 8
SHAPE = ModelDims(
    layers=2,
    hidden=8,
    heads=HEADS,
    kv_heads=KV_HEADS,
    head_dim=SIZE,
    vocabulary=10,
    context=10**6,
    parameters=1,
    layer_parameters=1,
)
CASES = {
    "one token": [(0, 1)],
    "decoding of unlike lengths": [(n, n + 1) for n in (0, 1, 15, 16, 17, 200, 31)],
    "decoding beyond one group": [(n, n + 1) for n in (GROUP_TOKENS + 5, 3000, 2000, 1999, 5)],
    "whole prompts": [(0, 2), (0, 16), (0, 33)],
    "a prompt longer than one stretch": [(0, 2 * MASK_TOKENS + 7)],
    "prompts with a beginning": [(5, 9), (16, 32), (100, 100 + MASK_TOKENS + 3)],
    "everything": [(40, 41), (0, 20), (7, 8), (30, 60), (0, 1)],
}


def setting(spans, dtype, generator):
    """A store, calls whose blocks are scattered over it, and their keys and values."""
    counts = [-(-end // BLOCK) for _, end in spans]
    numbers = random.Random(0).sample(range(sum(counts) + 3), sum(counts))
    store = KvCache(
        SHAPE,
        num_blocks=len(numbers) + 3,
        block_tokens=BLOCK,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    parts, whole = [], []
    for number, (start, end) in enumerate(spans):
        blocks = [numbers.pop() for _ in range(counts[number])]
        call = SequenceState(id=str(number), tokens=array("i", range(end)), blocks=blocks)
        parts.append(ScheduledChunk(call=call, start=start, end=end, is_last=True))
        whole.append(torch.randn(2, KV_HEADS, end, SIZE, dtype=dtype, generator=generator))
        slots = torch.tensor([blocks[n // BLOCK] * BLOCK + n % BLOCK for n in range(start)])
        if start:
            store.write(1, slots, *whole[-1][:, :, :start])
    return store, parts, whole


def naive(query, key, value, start):
    """Tokens from `start` on, each over itself and all before it, head by head."""
    end = key.shape[1]
    hidden = torch.arange(end) > torch.arange(start, end)[:, None]
    out = []
    for head in range(HEADS):
        of = head // (HEADS // KV_HEADS)
        scores = (query[head] @ key[of].T * 0.3).masked_fill(hidden, -torch.inf)
        out.append(torch.softmax(scores, dim=-1) @ value[of])
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_every_call_sees_its_own_tokens_and_no_others(case, dtype):
    generator = torch.Generator().manual_seed(0)
    spans = CASES[case]
    store, parts, whole = setting(spans, dtype, generator)
    queries = [
        torch.randn(HEADS, end - start, SIZE, dtype=dtype, generator=generator)
        for start, end in spans
    ]
    news = [kv[:, :, start:] for kv, (start, _) in zip(whole, spans, strict=True)]
    attend = PagedAttention(lay_out(parts, BLOCK), store, Scratch(store), dtype)
    keys, values = torch.cat(news, dim=2)
    found = attend(1, torch.cat(queries, dim=1)[None], keys[None], values[None], 0.3)[0]

    for (start, end), query, (key, value) in zip(spans, queries, whole, strict=True):
        alone, found = found[: end - start], found[end - start :]
        wanted = naive(query.double(), key.double(), value.double(), start)
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(alone.double(), wanted, atol=tolerance, rtol=0)
    assert not store.layer(0).any()


def test_a_pass_says_where_every_token_goes():
    one = SequenceState(id="one", tokens=array("i", range(100, 110)), blocks=[5, 2, 7])
    two = SequenceState(id="two", tokens=array("i", range(200, 203)), blocks=[1])
    work = lay_out(
        [
            ScheduledChunk(call=one, start=3, end=6, is_last=False),
            ScheduledChunk(call=two, start=2, end=3, is_last=True),
        ],
        4,
    )

    assert [103, 104, 105, 202] == work.ids.tolist()
    assert [3, 4, 5, 2] == work.positions.tolist()
    assert [5 * 4 + 3, 2 * 4, 2 * 4 + 1, 1 * 4 + 2] == work.slots.tolist()
    assert [0, 3, 4] == work.starts.tolist()
    assert [6, 3] == work.lengths.tolist()
    assert [[5, 2, 7], [1, 0, 0]] == work.blocks.tolist()
    assert [1] == work.wanted.tolist()
    assert {"int32"} == {
        str(one.dtype) for one in (work.ids, work.positions, work.slots, work.starts, work.wanted)
    }
    assert not work.is_decode
