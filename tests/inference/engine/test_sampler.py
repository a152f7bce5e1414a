"""Tokens come from the distribution that the settings describe, and say how likely they were."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.support.slow_engine import distribution, drawn, uniform

from gyre.inference.engine.sampler import (
    STRETCH,
    BatchSampling,
    sample,
    sample_packed,
    seed_of,
    uniforms,
    way_of,
)
from gyre.types.sampling import SamplingParams


def sampled(logits, samplings, numbers):
    vocabulary = logits.shape[1]
    ways = [way_of(one, vocabulary) for one in samplings]
    ids, logprobs = sample(logits, BatchSampling.of(ways, numbers, vocabulary, pinned=False))
    return ids.tolist(), logprobs.tolist()


WAYS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=0),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.7),
    SamplingParams(top_k=20, top_p=0.5, temperature=1.7),
    SamplingParams(top_k=1),
    SamplingParams(top_p=1e-9),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [1, 7, STRETCH, STRETCH + 1, 1000])
def test_rows_are_drawn_as_the_slow_version_draws_them(vocabulary, dtype):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(len(WAYS) * 9, vocabulary, generator=generator, dtype=torch.float64) * 3
    logits = logits.to(dtype)
    numbers = torch.rand(len(logits), generator=generator, dtype=torch.float64).tolist()
    ways = WAYS * 9
    ids, logprobs = sampled(logits, ways, numbers)
    expected = [distribution(row.tolist(), way) for row, way in zip(logits, ways, strict=True)]

    assert [drawn(one, number) for one, number in zip(expected, numbers, strict=True)] == ids
    assert logprobs == pytest.approx(
        [math.log(one[token]) for one, token in zip(expected, ids, strict=True)],
        abs=1e-12 if dtype == torch.float64 else 2e-6,
    )


LOGITS = [math.log(one) for one in (0.1, 0.4, 0.2, 0.05, 0.25)]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (SamplingParams(top_k=1), {1}),
        (SamplingParams(top_k=2), {1, 4}),
        (SamplingParams(top_k=5), {0, 1, 2, 3, 4}),
        (SamplingParams(top_k=99), {0, 1, 2, 3, 4}),
        (SamplingParams(top_p=0.39), {1}),
        (SamplingParams(top_p=0.41), {1, 4}),
        (SamplingParams(top_p=0.64), {1, 4}),
        (SamplingParams(top_p=0.66), {1, 4, 2}),
        (SamplingParams(top_p=0.96), {1, 4, 2, 0, 3}),
        # Of 0.4, 0.25 and 0.2 the first two hold 0.76, so 0.8 needs the third.
        (SamplingParams(top_k=3, top_p=0.75), {1, 4}),
        (SamplingParams(top_k=3, top_p=0.8), {1, 4, 2}),
        (SamplingParams(temperature=0), {1}),
    ],
)
def test_exactly_these_tokens_can_be_drawn(sampling, kept):
    numbers = [(n + 0.5) / 400 for n in range(400)]
    ids, logprobs = sampled(torch.tensor([LOGITS] * 400), [sampling] * 400, numbers)

    assert kept == set(ids)
    mass = sum(math.exp(LOGITS[token]) for token in kept)
    for token, logprob in zip(ids, logprobs, strict=True):
        expected = 0.0 if sampling.temperature == 0 else LOGITS[token] - math.log(mass)
        assert expected == pytest.approx(logprob, abs=1e-5)


def test_of_equally_likely_tokens_the_lower_ids_are_kept():
    ids, logprobs = sampled(
        torch.zeros(8, 6), [SamplingParams(top_k=3)] * 8, [n / 8 for n in range(8)]
    )

    assert [0, 0, 0, 1, 1, 1, 2, 2] == ids
    assert [math.log(1 / 3)] * 8 == pytest.approx(logprobs)


def test_impossible_tokens_are_never_drawn_at_either_end_of_the_interval():
    logits = torch.full((4, 700), -torch.inf)
    logits[:, 300] = 0.0
    logits[2:, 301] = 0.0
    last = math.nextafter(1.0, 0.0)

    assert [300, 300, 300, 301] == sampled(logits, [SamplingParams()] * 4, [0.0, last, 0.0, last])[
        0
    ]


def test_what_other_rows_want_changes_nothing():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 50, generator=generator).repeat(len(WAYS), 1)
    together = sampled(logits, WAYS, [0.37] * len(WAYS))

    for row, way in enumerate(WAYS):
        (alone,), (logprob,) = sampled(logits[:1], [way], [0.37])
        assert (alone, logprob) == (together[0][row], together[1][row])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_a_row_that_is_no_distribution_says_so_and_spoils_no_other(sampling, bad):
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    ids, logprobs = sampled(logits, [sampling] * 3, [0.5] * 3)

    assert all(0 <= one < 10 for one in ids)
    assert [False, True, False] == [math.isnan(one) for one in logprobs]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.8),
    ],
    ids=["all", "cold", "top-k", "top-p"],
)
def test_many_draws_are_distributed_as_they_should_be(sampling):
    """Pearson's statistic over tokens stays below its 99.9 % quantile."""
    count = 20_000
    logits = torch.linspace(-2, 2, 9)
    numbers = uniforms(range(10**6, 10**6 + count))
    ids, _ = sampled(logits.repeat(count, 1), [sampling] * count, numbers)
    expected = distribution(logits.tolist(), sampling)
    observed = [ids.count(token) for token in expected]
    statistic = sum(
        (seen - count * p) ** 2 / (count * p)
        for seen, p in zip(observed, expected.values(), strict=True)
    )
    quantile = {9: 26.12, 4: 16.27, 5: 18.47}[len(expected)]

    assert count == sum(observed)
    assert statistic < quantile


def test_the_packed_form_holds_ids_and_log_probabilities_exactly():
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    ways = [way_of(SamplingParams(temperature=0.6), 50)] * 9
    draws = BatchSampling.of(ways, uniforms(range(9)), 50, pinned=False)
    ids, logprobs = sample(logits, draws)
    same, packed = sample_packed(logits, draws)

    assert ids.tolist() == same.tolist() == packed[:, 0].tolist()
    assert logprobs.tolist() == packed[:, 1].tolist()


@pytest.mark.parametrize(
    ("samplings", "cut", "greedy", "heated"),
    [
        ([SamplingParams(), SamplingParams(top_k=50)], False, False, False),
        ([SamplingParams(), SamplingParams(temperature=0)], False, True, False),
        ([SamplingParams(), SamplingParams(temperature=0.9)], False, False, True),
        ([SamplingParams(top_p=0.9), SamplingParams()], True, False, False),
        (
            [SamplingParams(top_k=49, temperature=2), SamplingParams(temperature=0)],
            True,
            True,
            True,
        ),
    ],
)
def test_what_no_row_asks_for_is_known_beforehand(samplings, cut, greedy, heated):
    ways = [way_of(one, 50) for one in samplings]
    draws = BatchSampling.of(ways, uniforms([0, 1]), 50, pinned=False)

    assert (cut, greedy, heated) == (draws.is_cut, draws.is_greedy, draws.is_heated)


@given(st.lists(st.integers(-(2**63), 2**64), min_size=1))
def test_a_uniform_number_is_in_the_interval_and_depends_on_its_seed_alone(seeds):
    found = uniforms(seeds)

    assert [uniform(seed) for seed in seeds] == found.tolist()
    assert all(0.0 <= one < 1.0 for one in found)


def test_uniform_numbers_fill_the_interval_evenly():
    count = 20_000
    bins = np.bincount((uniforms(range(count)) * 20).astype(int), minlength=20)

    assert sum((bins - count / 20) ** 2 / (count / 20)) < 43.82


def test_asks_without_a_seed_have_seeds_of_their_own():
    assert seed_of(0, "a") == seed_of(0, "a")
    assert 4 == len({seed_of(0, "a"), seed_of(0, "b"), seed_of(1, "a"), seed_of(1, "b")})
