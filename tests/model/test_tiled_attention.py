"""Tiles give what one dense mask gives, on the kernels a CPU has."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.model.attention_kernels import TileAttention, pairs_in_blocks, tiles
from gyre.model.packed_batch import segments

TREES = {
    "a row": [24] * 24,
    "a row that fills tiles": [16] * 16,
    "a prefix and branches": [55] * 30 + [35] * 5 + [52] * 17 + [55] * 3,
    "rows": [7] * 7 + [16] * 9 + [46] * 30,
    "branches of branches": [40] * 20 + [30] * 6 + [28] * 2 + [30] * 2 + [40] * 10,
}


def dense(tout, q, k, v, scale):
    """Attention with the mask written out."""
    index = torch.arange(len(tout))
    ends = torch.tensor(tout)
    mask = (index[None] <= index[:, None]) & (index[:, None] < ends[None])
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def inputs(num, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num)
    return [
        torch.randn(1, heads, num, 8, dtype=torch.float64, generator=generator)
        .to(dtype)
        .requires_grad_()
        for heads in (4, 2, 2)
    ]


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("grain", [4, 8, 64])
def test_values_and_gradients_are_those_of_a_dense_mask(name, grain):
    """L01, L07."""
    tout = np.array(TREES[name])
    given_ = inputs(len(tout))
    attend = TileAttention(tiles(segments(tout), grain), len(tout), torch.device("cpu"))
    ours, exact = attend(0, *given_, 0.3), dense(TREES[name], *given_, 0.3)
    generator = torch.Generator().manual_seed(grain)
    weights = torch.randn(exact.shape, dtype=torch.float64, generator=generator)

    assert (ours - exact).abs().max() < 1e-13
    for one, two in zip(
        torch.autograd.grad(ours, given_, weights),
        torch.autograd.grad(exact, given_, weights),
        strict=True,
    ):
        assert (one - two).abs().max() < 1e-12


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from([2, 4, 8]))
def test_every_token_is_a_query_of_one_tile_and_sizes_are_multiples(branches, grain):
    """A prefix of ten tokens, and branches under it."""
    ends = 10 + np.cumsum(branches)
    tout = np.concatenate([np.full(10, ends[-1]), np.repeat(ends, branches)])
    plan = tiles(segments(tout), grain)
    queries = np.concatenate([one.rows[one.first : one.last] for one in plan])

    assert list(range(len(tout))) == sorted(queries.tolist())
    for one in plan:
        assert 0 == len(one.rows) % grain == len(one.context) % grain
        path = np.concatenate([one.context, one.rows[: one.last]])
        assert path.tolist() == [k for k in range(path[-1] + 1) if tout[k] > path[-1]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_blocks_with_anything_visible_are_counted(branches):
    ends = 10 + np.cumsum(branches)
    tout = np.concatenate([np.full(10, ends[-1]), np.repeat(ends, branches)])
    num = len(tout)
    seen = {(q // 4, k // 4) for k in range(num) for q in range(k, num) if q < tout[k]}

    assert 16 * len(seen) == pairs_in_blocks(tout, 4)
