"""Sampling that reads the logits once draws what sampling by the book draws."""

import math

import pytest
import torch

from gyre.inference.engine.sampler import BatchSampling, sample, uniforms, way_of
from gyre.types.sampling import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
WAYS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.7),
]
LAST = math.nextafter(1.0, 0.0)


def draws(samplings, numbers, vocabulary):
    ways = [way_of(one, vocabulary) for one in samplings]
    return BatchSampling.of(ways, numbers, vocabulary, pinned=True).on(torch.device("cuda"))


@pytest.mark.parametrize("vocabulary", [1, 255, 256, 1_000, 49_152, 151_936])
def test_rows_are_drawn_as_they_are_by_the_book(vocabulary):
    from gyre.inference.engine import triton_kernels

    generator = torch.Generator("cuda").manual_seed(vocabulary)
    logits = torch.randn(64, vocabulary, device="cuda", generator=generator).mul(3).bfloat16()
    logits[5, : vocabulary // 2] = -torch.inf
    asked = draws(WAYS * 16, uniforms(range(64)), vocabulary)
    ids, logprobs = triton_kernels.sample(logits, asked)
    expected = sample(logits, asked)

    assert expected[0].tolist() == ids.tolist()
    torch.testing.assert_close(logprobs, expected[1], rtol=1e-5, atol=1e-5)


def test_impossible_tokens_are_never_drawn_at_either_end_of_the_interval():
    from gyre.inference.engine import triton_kernels

    logits = torch.full((4, 700), -torch.inf, device="cuda", dtype=torch.bfloat16)
    logits[:, 300] = 0.0
    logits[2:, 301] = 0.0
    ids, _ = triton_kernels.sample(logits, draws(WAYS[:1] * 4, [0.0, LAST, 0.0, LAST], 700))

    assert [300, 300, 300, 301] == ids.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_a_row_that_is_no_distribution_says_so_and_spoils_no_other(sampling, bad):
    from gyre.inference.engine import triton_kernels

    logits = torch.zeros(3, 10, device="cuda", dtype=torch.bfloat16)
    logits[1, 4] = bad
    ids, logprobs = triton_kernels.sample(logits, draws([sampling] * 3, [0.5] * 3, 10))

    assert all(0 <= one < 10 for one in ids.tolist())
    assert [False, True, False] == logprobs.isnan().tolist()
