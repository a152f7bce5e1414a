"""Which micro-steps a batch of claims becomes, in which order, and what is made of the results."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer import cases

from gyre.config.sections import LossConfig
from gyre.trainer.distributed.pipeline import MicroStepResult, StreamEnd
from gyre.trainer.distributed.pipeline_schedule import HeaderKind
from gyre.trainer.loss import GSPO, Measures, loss_and_gradient
from gyre.trainer.release import Releases
from gyre.types.errors import CellError, InternalError
from gyre.types.training import Score

NETWORK = cases.network("llama")
CLAIMS = [cases.claim(NETWORK, seed) for seed in (1, 2, 3)]
NUM_PACKS = len(cases.TREES)


def a_source(section=cases.SECTION):
    return Releases(NETWORK, section, num_executions=cases.NUM_EXECUTIONS)


def outcome(work, log_ratio=0.0):
    """Of a model under which every target's log-ratio is the same."""
    counts = [int((work.pack.shares == share).sum()) for share in range(len(work.shares))]
    signs = [work.shares[share].advantage > 0 for share in work.pack.shares]
    return MicroStepResult(
        work=work,
        scores=tuple(Score(sum_log_ratio=log_ratio * count, count=count) for count in counts),
        loss=None if work.scores is None else 0.5,
        measures=Measures(
            num_targets=len(signs),
            num_capped=0,
            num_raised=sum(signs),
            num_raised_clipped=0,
            num_lowered=len(signs) - sum(signs),
            num_lowered_clipped=0,
            sum_ratio=float(len(signs)),
            max_gap=abs(log_ratio),
        ),
    )


def run(source, log_ratio=0.0):
    """Everything the source has, finished at once."""
    taken = []
    while not isinstance(work := source.take(), StreamEnd):
        taken.append(work)
        source.finished(outcome(work, log_ratio))
    return taken, work


def test_a_claim_is_trained_when_all_its_packs_are_scored():
    source = a_source()
    source.offer(CLAIMS[0])
    taken, ended = run(source)

    assert [HeaderKind.SCORE] * NUM_PACKS + [HeaderKind.RUN] * NUM_PACKS == [
        one.kind for one in taken
    ]
    assert list(CLAIMS[0].packs) * 2 == [one.pack for one in taken]
    assert StreamEnd.PAUSED is ended


def test_every_micro_step_is_told_the_scores_of_the_whole_claim():
    source = a_source()
    source.offer(CLAIMS[0])
    taken, _ = run(source, log_ratio=0.001)
    totals = tuple(
        Score(sum_log_ratio=pytest.approx(0.001 * one.num_targets), count=one.num_targets)
        for one in CLAIMS[0].shares
    )

    assert [totals] * NUM_PACKS == [one.scores for one in taken[NUM_PACKS:]]
    assert totals == source.trained[0].scores


def test_while_scores_are_on_their_way_the_batch_waits_and_is_not_closed():
    source = a_source()
    source.offer(CLAIMS[0])
    source.end()
    taken = [source.take() for _ in range(NUM_PACKS)]

    assert StreamEnd.PAUSED is source.take()

    for work in taken:
        source.finished(outcome(work))
    released, ended = run(source)
    assert [HeaderKind.RUN] * NUM_PACKS == [one.kind for one in released]
    assert StreamEnd.CLOSED is ended


def test_what_can_be_trained_goes_before_what_can_be_scored():
    source = a_source()
    source.offer(CLAIMS[0])
    source.offer(CLAIMS[1])
    for _ in range(NUM_PACKS):
        source.finished(outcome(source.take()))

    assert HeaderKind.RUN == source.take().kind


def test_scores_that_are_known_are_not_computed_again():
    source = a_source()
    scores = [Score(sum_log_ratio=0.0, count=one.num_targets) for one in CLAIMS[0].shares]
    source.offer(CLAIMS[0], scores)
    taken, _ = run(source)

    assert [HeaderKind.RUN] * NUM_PACKS == [one.kind for one in taken]


def test_a_claim_that_is_clipped_is_counted_and_not_trained():
    """Positive advantages are beyond the upper bound; negative ones give their gradient."""
    raised = tuple(dataclasses.replace(one, advantage=1.0) for one in CLAIMS[0].shares)
    source = a_source()
    source.offer(dataclasses.replace(CLAIMS[0], shares=raised))
    source.end()
    taken, ended = run(source, log_ratio=0.1)
    (trained,) = source.trained

    assert [HeaderKind.SCORE] * NUM_PACKS == [one.kind for one in taken]
    assert StreamEnd.CLOSED is ended
    assert (0.0, NUM_PACKS) == (trained.loss, trained.num_skipped)
    assert trained.measures.num_raised_clipped == trained.measures.num_targets > 0


@pytest.mark.parametrize(("section", "has_loss"), [(GSPO, True), (LossConfig(), False)])
def test_what_is_not_trained_has_the_loss_that_weighing_it_gives(section, has_loss):
    raised = tuple(dataclasses.replace(one, advantage=1.5) for one in CLAIMS[0].shares)
    source = a_source(section)
    source.offer(dataclasses.replace(CLAIMS[0], shares=raised))
    source.end()
    run(source, log_ratio=0.1)
    (trained,) = source.trained
    expected = sum(
        loss_and_gradient(
            torch.from_numpy(pack.behaviour).double() + 0.1,
            torch.from_numpy(pack.behaviour),
            torch.from_numpy(pack.shares),
            shares=raised,
            scores=trained.scores,
            num_executions=cases.NUM_EXECUTIONS,
            section=section,
        ).loss
        for pack in CLAIMS[0].packs
    )

    assert NUM_PACKS == trained.num_skipped
    assert has_loss == (expected != 0)
    assert expected == pytest.approx(trained.loss)


def test_a_claim_without_packs_is_through_at_once():
    source = a_source()
    source.offer(dataclasses.replace(CLAIMS[0], packs=(), shares=()))
    source.end()

    assert StreamEnd.CLOSED is source.take()
    assert [0.0] == [one.loss for one in source.trained]


def test_a_claim_that_lacks_targets_is_refused_and_changes_nothing():
    source = a_source()
    with pytest.raises(CellError, match="it holds"):
        source.offer(dataclasses.replace(CLAIMS[0], packs=CLAIMS[0].packs[1:]))

    assert StreamEnd.PAUSED is source.take()


def test_a_batch_that_has_ended_takes_no_claim():
    source = a_source()
    source.end()
    with pytest.raises(InternalError, match="has ended"):
        source.offer(CLAIMS[0])

    assert StreamEnd.CLOSED is source.take()


@given(choices=st.randoms(use_true_random=False), num_claims=st.integers(0, 3))
def test_whenever_results_come_every_pack_is_scored_once_and_trained_once(choices, num_claims):
    source = a_source()
    waiting, offered, scored, trained = [], 0, [], []
    ended = None
    while ended is not StreamEnd.CLOSED:
        if offered <= num_claims and choices.random() < 0.5:
            source.offer(CLAIMS[offered]) if offered < num_claims else source.end()
            offered += 1
        elif waiting and choices.random() < 0.5:
            source.finished(outcome(waiting.pop(0)))
        elif isinstance(work := source.take(), StreamEnd):
            ended = work
            # Only a result or an offer can change the answer.
            assert waiting or offered <= num_claims or ended is StreamEnd.CLOSED
            if waiting:
                source.finished(outcome(waiting.pop(0)))
        else:
            waiting.append(work)
            (scored if work.kind == HeaderKind.SCORE else trained).append(id(work.pack))
    for work in waiting:
        source.finished(outcome(work))
    packs = sorted(id(pack) for claim in CLAIMS[:num_claims] for pack in claim.packs)

    assert packs == sorted(scored) == sorted(trained)
    assert [0.5 * NUM_PACKS] * num_claims == [one.loss for one in source.trained]
