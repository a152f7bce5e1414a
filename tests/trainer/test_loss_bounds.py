"""What the objective does exactly at its bounds, and what it refuses."""

from dataclasses import replace
from math import exp, inf, log, nan, nextafter

import msgspec
import pytest
import torch

from gyre.config.sections import LossConfig
from gyre.trainer.loss import (
    GRPO,
    GSPO,
    Measures,
    add_scores,
    is_kept,
    log_ratio_sums,
    loss_and_gradient,
    total,
)
from gyre.types.errors import InternalError, NotFinite
from gyre.types.ids import ExecutionId
from gyre.types.training import Score, Share

GYRE = LossConfig()
HIGH, LOW = log(1.005), log(0.995)
ABOVE_HIGH, BELOW_LOW = nextafter(HIGH, inf), nextafter(LOW, -inf)


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def shares_of(*advantages, num_targets=1):
    return [
        Share(execution=ExecutionId(f"e{at}"), advantage=one, num_targets=num_targets)
        for at, one in enumerate(advantages)
    ]


def weighed(logprobs, behaviour, advantage, *, section=GYRE, num_executions=1):
    """One execution whose targets are all here."""
    shares = shares_of(advantage, num_targets=len(logprobs))
    given = doubles(logprobs), doubles(behaviour), torch.zeros(len(logprobs), dtype=torch.int32)
    scores = log_ratio_sums(*given, shares)
    return loss_and_gradient(
        *given, shares=shares, scores=scores, num_executions=num_executions, section=section
    )


CLIPS = [
    # advantage, log of the execution's ratio, kept
    (1.0, HIGH, True),
    (1.0, ABOVE_HIGH, False),
    (1.0, nextafter(HIGH, -inf), True),
    (1.0, BELOW_LOW, True),
    (1.0, -3.0, True),
    (1.0, 3.0, False),
    (-1.0, LOW, True),
    (-1.0, BELOW_LOW, False),
    (-1.0, nextafter(LOW, inf), True),
    (-1.0, ABOVE_HIGH, True),
    (-1.0, 3.0, True),
    (-1.0, -3.0, False),
    (0.0, 3.0, True),
    (0.0, -3.0, True),
]


@pytest.mark.parametrize(("advantage", "log_ratio", "kept"), CLIPS)
def test_an_execution_is_masked_just_beyond_its_bound(advantage, log_ratio, kept):
    """L04: a log-probability of zero when sampled makes the log-ratio exact."""
    one = weighed([log_ratio], [0.0], advantage)
    (share,), score = shares_of(advantage), Score(sum_log_ratio=log_ratio, count=1)

    slope = -min(exp(log_ratio), 5.0) * advantage if kept else 0.0
    assert kept == is_kept(share, score, GYRE)
    assert slope == pytest.approx(one.gradient.item(), rel=1e-15)
    assert slope * log_ratio == pytest.approx(one.loss, rel=1e-15)
    assert (slope != 0) == one.has_gradient
    assert (log_ratio,) == one.log_ratios


def test_the_bounds_are_those_configured():
    wide = replace(GYRE, clip_low=0.5, clip_high=2.0)

    assert weighed([log(1.9)], [0.0], 1.0, section=wide).has_gradient
    assert not weighed([log(2.1)], [0.0], 1.0, section=wide).has_gradient
    assert weighed([log(0.6)], [0.0], -1.0, section=wide).has_gradient
    assert not weighed([log(0.4)], [0.0], -1.0, section=wide).has_gradient


def test_the_mask_is_of_the_mean_over_the_whole_execution():
    """One target far above and one far below: the mean is what counts, for both."""
    both = weighed([1.0, -1.0], [0.0, 0.0], 1.0)
    over = weighed([1.0, -0.9], [0.0, 0.0], 1.0)

    assert [-exp(1.0) / 2, -exp(-1.0) / 2] == pytest.approx(both.gradient.tolist(), rel=1e-15)
    assert [0.0, 0.0] == over.gradient.tolist()


@pytest.mark.parametrize(
    ("advantage", "logprob", "loss", "slope"),
    [
        (50.0, -1.9, 95.0, -50.0),
        (50.0, -2.0, 100.0, -50.0),
        (50.0, nextafter(-2.0, -inf), 100.0, 0.0),
        (50.0, -40.0, 100.0, 0.0),
        (-50.0, -2.0, -100.0, 50.0),
        (-50.0, -40.0, -2000.0, 50.0),
    ],
)
def test_the_cap_stops_the_loss_and_the_gradient_above_it(advantage, logprob, loss, slope):
    """L05: only with a positive advantage; at the cap itself the gradient is whole."""
    one = weighed([logprob], [logprob], advantage)

    assert (loss, slope) == (one.loss, one.gradient.item())
    assert int(slope == 0) == one.measures.num_capped


def test_a_capped_target_leaves_the_others_their_gradient():
    one = weighed([-40.0, -1.0], [-40.0, -1.0], 10.0)

    assert [0.0, -5.0] == one.gradient.tolist()
    assert (100.0 + 10.0) / 2 == one.loss
    assert (1, 2) == (one.measures.num_capped, one.measures.num_targets)


@pytest.mark.parametrize(
    ("log_ratio", "weight"), [(log(4.9), 4.9), (log(5.1), 5.0), (50.0, 5.0), (800.0, 5.0)]
)
def test_a_ratio_weighs_at_most_five(log_ratio, weight):
    """A negative advantage, which no high ratio masks; exp(800) is no float."""
    one = weighed([-1.0], [-1.0 - log_ratio], -1.0)

    assert weight == pytest.approx(one.gradient.item(), rel=1e-14)
    assert -weight == pytest.approx(one.loss, rel=1e-14)


def test_executions_with_nothing_to_give_leave_the_denominator_alone():
    """L08: zero advantage, no targets, all clipped: only the first of four is in the loss."""
    shares = [
        *shares_of(2.0, 0.0, 1.0),
        Share(execution=ExecutionId("empty"), advantage=1.0, num_targets=0),
    ]
    given = doubles([-1.0, -1.0, -1.0]), doubles([-1.0, -3.0, -3.0]), torch.arange(3)
    scores = log_ratio_sums(*given, shares)
    one = loss_and_gradient(*given, shares=shares, scores=scores, num_executions=4, section=GYRE)

    assert [-2.0 / 4, 0.0, 0.0] == one.gradient.tolist()
    assert 2.0 / 4 == one.loss
    assert (0.0, 2.0, 2.0, None) == one.log_ratios


@pytest.mark.parametrize("section", [GYRE, GRPO, GSPO], ids=lambda one: one.kind)
def test_a_pack_without_targets_weighs_nothing(section):
    """L08: there is still a tensor to call backward with."""
    logprobs = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    given = doubles([]), torch.zeros(0, dtype=torch.int32)
    shares = shares_of(1.0)
    scores = [Score(sum_log_ratio=0.0, count=1)]
    one = loss_and_gradient(
        logprobs, *given, shares=shares, scores=scores, num_executions=4, section=section
    )
    logprobs.backward(one.gradient)

    assert (0.0, False, None) == (one.loss, one.has_gradient, one.measures.max_gap)
    assert (Score(sum_log_ratio=0.0, count=0),) == log_ratio_sums(logprobs, *given, shares)


SURROGATES = [
    # kind, advantage, log-ratio, loss, slope
    (GRPO, 1.0, 0.1, -exp(0.1), -exp(0.1)),
    (GRPO, 1.0, log(1.2), -1.2, -1.2),
    (GRPO, 1.0, nextafter(log(1.2), inf), -1.2, 0.0),
    (GRPO, 1.0, -2.0, -exp(-2.0), -exp(-2.0)),
    (GRPO, 1.0, 800.0, -1.2, 0.0),
    (GRPO, -1.0, log(0.8), 0.8, 0.8),
    (GRPO, -1.0, nextafter(log(0.8), -inf), 0.8, 0.0),
    (GRPO, -1.0, 2.0, exp(2.0), exp(2.0)),
    (GSPO, 1.0, log(1 + 4e-4), -(1 + 4e-4), -(1 + 4e-4)),
    (GSPO, 1.0, 0.0005, -(1 + 4e-4), 0.0),
    (GSPO, -1.0, log(1 - 3e-4), 1 - 3e-4, 1 - 3e-4),
    (GSPO, -1.0, -0.0004, 1 - 3e-4, 0.0),
    (GSPO, -1.0, 2.0, exp(2.0), exp(2.0)),
]


@pytest.mark.parametrize(("section", "advantage", "log_ratio", "loss", "slope"), SURROGATES)
def test_the_clipped_surrogates_at_their_bounds(section, advantage, log_ratio, loss, slope):
    one = weighed([log_ratio], [0.0], advantage, section=section)
    score = Score(sum_log_ratio=log_ratio, count=1)

    assert loss == pytest.approx(one.loss, rel=1e-14)
    assert slope == pytest.approx(one.gradient.item(), rel=1e-14)
    kept = slope != 0 or section is GRPO
    assert kept == is_kept(shares_of(advantage)[0], score, section)


def test_grpo_clips_each_target_and_gspo_the_sequence():
    """Log-ratios 1 and -1: their mean is zero, each alone is beyond a bound of GRPO."""
    by_target = weighed([1.0, -1.0], [0.0, 0.0], 1.0, section=GRPO)
    by_sequence = weighed([1.0, -1.0], [0.0, 0.0], 1.0, section=GSPO)

    assert [0.0, -exp(-1.0) / 2] == pytest.approx(by_target.gradient.tolist(), rel=1e-15)
    assert [-0.5, -0.5] == by_sequence.gradient.tolist()


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("section", [GYRE, GRPO, GSPO], ids=lambda one: one.kind)
def test_what_is_no_number_is_refused_by_name(bad, place, section):
    """L05: nothing comes back, neither a score nor a part of a loss."""
    columns = [[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]
    columns[place][1] = bad
    given = doubles(columns[0]), doubles(columns[1]), torch.tensor([0, 1, 1])
    shares = [replace(one, num_targets=at + 1) for at, one in enumerate(shares_of(1.0, -1.0))]
    scores = [Score(sum_log_ratio=0.0, count=1), Score(sum_log_ratio=0.0, count=2)]

    with pytest.raises(NotFinite, match="execution e1: log-probability") as refused:
        log_ratio_sums(*given, shares)
    assert not refused.value.retryable
    with pytest.raises(NotFinite, match="execution e1: log-probability"):
        loss_and_gradient(*given, shares=shares, scores=scores, num_executions=2, section=section)


def test_a_score_or_a_loss_that_is_no_number_is_refused_by_name():
    given = doubles([-1.0]), doubles([-1.0]), torch.tensor([0])
    bad = [Score(sum_log_ratio=nan, count=1)]

    with pytest.raises(NotFinite, match="execution e0: its sum of log-ratios is nan"):
        loss_and_gradient(*given, shares=shares_of(1.0), scores=bad, num_executions=1, section=GYRE)
    with pytest.raises(NotFinite, match="execution e0: loss of 1 targets"):
        weighed([0.0], [-800.0], -1.0, section=GRPO)


def test_an_execution_that_is_not_wholly_scored_is_a_bug():
    """SPEC 8.3: s_i is known before any backward."""
    given = doubles([-1.0]), doubles([-1.0]), torch.tensor([0])
    shares = shares_of(1.0, 1.0, num_targets=2)
    half = [Score(sum_log_ratio=0.0, count=1)] * 2

    with pytest.raises(InternalError, match="execution e0: 1 of 2 targets are scored"):
        loss_and_gradient(*given, shares=shares, scores=half, num_executions=1, section=GYRE)
    with pytest.raises(InternalError, match="2 shares have 1 scores"):
        loss_and_gradient(*given, shares=shares, scores=half[:1], num_executions=1, section=GYRE)
    with pytest.raises(InternalError, match="one entry per target"):
        log_ratio_sums(doubles([-1.0, -2.0]), *given[1:], shares)


def test_an_execution_elsewhere_need_not_be_scored_yet():
    shares = shares_of(1.0, 1.0)
    given = doubles([-1.0]), doubles([-1.0]), torch.tensor([1])
    scores = [Score(sum_log_ratio=0.0, count=0), Score(sum_log_ratio=0.0, count=1)]

    assert (
        1.0
        == loss_and_gradient(
            *given, shares=shares, scores=scores, num_executions=1, section=GYRE
        ).loss
    )


def test_the_gradient_has_the_type_of_what_it_is_for():
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float32, requires_grad=True)
    given = logprobs, torch.tensor([-1.0, -2.0]), torch.tensor([0, 0], dtype=torch.int32)
    shares = shares_of(3.0, num_targets=2)
    scores = log_ratio_sums(*given, shares)
    one = loss_and_gradient(*given, shares=shares, scores=scores, num_executions=5, section=GYRE)
    logprobs.backward(one.gradient)

    assert torch.float32 == one.gradient.dtype
    assert [-0.3, -0.3] == pytest.approx(logprobs.grad.tolist(), rel=1e-6)
    assert 3.0 * 3.0 / 10 == pytest.approx(one.loss, rel=1e-15)


def test_small_terms_are_not_lost_beside_large_ones():
    """Sums are correctly rounded: float32 or a plain loop would give 0 here."""
    logprobs = doubles([1e16, 1.0, -1e16])
    shares = shares_of(1.0, num_targets=3)
    (one,) = log_ratio_sums(logprobs, torch.zeros(3), torch.zeros(3, dtype=torch.int32), shares)

    assert 1.0 == one.sum_log_ratio
    assert (Score(sum_log_ratio=2.0, count=6),) == add_scores([[one], [one]])


def test_measures_can_be_told_whatever_was_sampled():
    """A server may say -9999 of what it thought impossible; JSON has no word for infinity."""
    found = weighed([-1.0] * 3, [-9999.0] * 3, -1.0)
    many = total([found.measures] * 1000)

    assert many == msgspec.json.decode(msgspec.json.encode(many), type=Measures)
    assert 9998.0 == many.max_gap
    assert 1e200 < many.sum_ratio / many.num_targets
    # Each weighs five, and its loss is -5 * 1.
    assert -5.0 == pytest.approx(found.loss)


def test_measures_say_what_happened_and_add_up():
    """Ratios e and 1 with a positive advantage, 1/e with a negative one."""
    shares = shares_of(2.0, 1.0, -1.0)
    given = doubles([0.0, -60.0, -1.0]), doubles([-1.0, -60.0, 0.0]), torch.tensor([0, 1, 2])
    scores = log_ratio_sums(*given, shares)
    tight = replace(GYRE, loss_cap=50.0)
    one = loss_and_gradient(
        *given, shares=shares, scores=scores, num_executions=3, section=tight
    ).measures

    expected = Measures(
        num_targets=3,
        num_capped=1,
        num_raised=2,
        num_raised_clipped=1,
        num_lowered=1,
        num_lowered_clipped=1,
        sum_ratio=pytest.approx(exp(1) + 1 + exp(-1)),
        max_gap=1.0,
    )
    assert expected == one
    assert total([one, one]).num_targets == 2 * one.num_targets
    assert total([one, one]).sum_ratio == 2 * one.sum_ratio
    empty = total([])
    assert (0, None) == (empty.num_targets, empty.max_gap)
