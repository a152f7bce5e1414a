"""Attention over packs on CUDA is that of a dense mask, to what bf16 can hold."""

import numpy as np
import pytest
import torch

from gyre.model.attention import cuda_attention
from gyre.model.attention_kernels import TileAttention, TreeAttention
from gyre.model.packed_batch import packed
from gyre.types.training import Pack

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

ROW = [1536] * 1536
PREFIX = [3500] * 2040 + [2560] * 520 + [3500] * 940
ROWS = [700] * 700 + [2000] * 1300
BUSHY = [2200] * 1000 + [end for end in range(1030, 2201, 30) for _ in range(30)]


def a_pack(tout):
    count = len(tout)
    ends = np.array(tout)
    positions = [int((ends[:q] > q).sum()) for q in range(count)]
    return Pack(
        ids=np.zeros(count, np.int32),
        positions=np.array(positions, np.int32),
        tout=np.array(tout, np.int32),
        predictors=np.zeros(0, np.int32),
        labels=np.zeros(0, np.int32),
        behaviour=np.zeros(0, np.float32),
        shares=np.zeros(0, np.int32),
    )


def dense(tout, q, k, v, scale):
    index = torch.arange(len(tout), device=q.device)
    mask = (index[None] <= index[:, None]) & (
        index[:, None] < torch.as_tensor(tout, device=q.device)[None]
    )
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize(
    ("tout", "kind"),
    [(ROW, TileAttention), (PREFIX, TileAttention), (ROWS, TileAttention), (BUSHY, TreeAttention)],
    ids=["row", "prefix", "rows", "bushy"],
)
def test_values_and_gradients_are_those_of_a_dense_mask(tout, kind):
    """L01, L07."""
    made = packed(a_pack(tout), "cuda", multiple=512)
    attend = cuda_attention(made, torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(0)
    narrow = [
        torch.randn(1, heads, made.num_tokens, 64, device="cuda", generator=generator)
        .to(torch.bfloat16)
        .requires_grad_()
        for heads in (8, 4, 4)
    ]
    wide = [one.detach().double().requires_grad_() for one in narrow]
    ours, exact = attend(0, *narrow, 0.125), dense(made.tout, *wide, 0.125)
    weights = torch.randn(exact.shape, device="cuda", generator=generator)
    found = [ours, *torch.autograd.grad(ours, narrow, weights.to(torch.bfloat16))]
    expected = [exact, *torch.autograd.grad(exact, wide, weights.double())]

    assert isinstance(attend, kind)
    for one, two in zip(found, expected, strict=True):
        assert ((one.double() - two).norm() / two.norm()).item() < 1e-2


def test_wide_types_and_bits_that_must_repeat_are_computed_in_blocks():
    made = packed(a_pack(PREFIX), "cuda", multiple=512)

    assert isinstance(cuda_attention(made, torch.float32), TreeAttention)
