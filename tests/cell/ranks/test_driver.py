"""Claims become micro-steps in order, scored before they are trained, and counted once."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import PATIENCE_S

from gyre.cell.ranks.driver import Driver, MicroStepStream, PendingClaim
from gyre.config.sections import LossConfig
from gyre.trainer.distributed.pipeline import MicroStep, MicroStepResult, StreamEnd
from gyre.trainer.loss import GSPO, loss_and_gradient
from gyre.types.errors import CellError, CellGone, NotFinite
from gyre.types.training import Claim, Measures, Pack, Score, Share

SECTION = LossConfig()
INSIDE, BEYOND = 0.0, 1.0
"""Log-ratios of a target: one within the bounds, one that clips a positive advantage."""


def pack_of(*shares):
    """One token and one target of each share."""
    ints = np.zeros(len(shares), np.int32)
    names = ("ids", "positions", "tout", "predictors", "labels")
    return Pack(
        **dict.fromkeys(names, ints),
        behaviour=np.zeros(len(shares), np.float32),
        shares=np.array(shares, np.int32),
    )


def claim_of(*packs):
    num_shares = 1 + max(share for pack in packs for share in pack)
    counts = [sum(pack.count(share) for pack in packs) for share in range(num_shares)]
    shares = tuple(
        Share(execution=f"e{share}", advantage=1.0, num_targets=count)
        for share, count in enumerate(counts)
    )
    return Claim(shares=shares, packs=tuple(pack_of(*pack) for pack in packs))


def claimed(claim, lease=0, scores=None):
    return PendingClaim(claim=claim, num_executions=4, lease=lease, scores=scores)


def result_of(work, ratios):
    """What a last stage says; `ratios` are log-ratios by share."""
    counts = np.bincount(work.pack.shares, minlength=len(work.shares)).tolist()
    scores = tuple(
        Score(sum_log_ratio=ratios[share] * count, count=count)
        for share, count in enumerate(counts)
    )
    measures = Measures(
        num_targets=work.pack.num_targets,
        num_capped=0,
        num_raised=work.pack.num_targets,
        num_raised_clipped=0,
        num_lowered=0,
        num_lowered_clipped=0,
        sum_ratio=1.0,
        max_gap=0.0,
    )
    loss = None if work.scores is None else 0.5
    return MicroStepResult(work=work, scores=scores, loss=loss, measures=measures)


def feed_of(*claims, held=None, section=SECTION):
    waiting = deque(claims)
    return MicroStepStream(
        section, lambda: waiting.popleft() if waiting else None, set() if held is None else held
    )


def through(feed, ratios=(INSIDE,) * 4):
    """Everything, one micro-step at a time, as a pipeline that is closed would take it."""
    taken = []
    feed.is_closing = True
    while isinstance(work := feed.take(), MicroStep):
        taken.append(work)
        feed.finished(result_of(work, ratios))
    assert StreamEnd.CLOSED is work
    return taken


def test_a_claim_is_scored_and_then_trained_with_the_scores_of_all_its_packs():
    held = set()
    one = claimed(claim_of([0], [0, 1]), lease=7)
    taken = through(feed_of(one, held=held), ratios=[INSIDE, 0.001])

    assert [None, None] == [work.scores for work in taken[:2]]
    expected = (Score(sum_log_ratio=0.0, count=2), Score(sum_log_ratio=0.001, count=1))
    assert [expected, expected] == [work.scores for work in taken[2:]]
    assert expected == one.done.result().scores
    assert 1.0 == one.done.result().loss
    assert {7} == held


def test_scores_that_came_along_are_not_made_again():
    scores = (Score(sum_log_ratio=0.0, count=1),)
    taken = through(feed_of(claimed(claim_of([0]), scores=scores)))

    assert [scores] == [work.scores for work in taken]


def test_a_claim_that_is_only_scored_is_in_no_sum():
    held = set()
    one = claimed(claim_of([0], [0]), lease=None)
    taken = through(feed_of(one, held=held), ratios=[0.25])

    assert 2 == len(taken)
    assert (Score(sum_log_ratio=0.5, count=2),) == one.done.result().scores
    assert set() == held


def test_a_pack_without_gradient_passes_forward_only_and_counts_as_clipped():
    """SPEC 8.3."""
    one = claimed(claim_of([0, 0], [1]))
    taken = through(feed_of(one), ratios=[BEYOND, INSIDE])
    found = one.done.result()

    assert [True, True, True, False] == [work.scores is None for work in taken]
    assert (2, 3) == (found.measures.num_raised_clipped, found.measures.num_targets)
    assert (1, 0.5) == (found.num_skipped, found.loss)


@pytest.mark.parametrize(("section", "has_loss"), [(GSPO, True), (SECTION, False)])
def test_a_pack_without_gradient_has_the_loss_that_weighing_it_gives(section, has_loss):
    one = claimed(claim_of([0, 0], [1, 1, 0]))
    through(feed_of(one, section=section), ratios=[BEYOND, BEYOND])
    found = one.done.result()
    expected = sum(
        loss_and_gradient(
            torch.full((pack.num_targets,), BEYOND, dtype=torch.float64),
            torch.from_numpy(pack.behaviour),
            torch.from_numpy(pack.shares),
            shares=one.claim.shares,
            scores=found.scores,
            num_executions=one.num_executions,
            section=section,
        ).loss
        for pack in one.claim.packs
    )

    assert 2 == found.num_skipped
    assert has_loss == (expected != 0)
    assert expected == pytest.approx(found.loss)


@given(choices=st.randoms(use_true_random=False), num_claims=st.integers(0, 3))
def test_whenever_results_come_every_pack_is_scored_once_and_trained_once(choices, num_claims):
    claims = [claimed(claim_of([0], [0, 1], [1]), lease=lease) for lease in range(num_claims)]
    feed, coming, waiting = feed_of(), deque(claims), deque()
    scored, trained, ended = [], [], None

    def finish():
        feed.finished(result_of(waiting.popleft(), [INSIDE, INSIDE]))

    while ended is not StreamEnd.CLOSED:
        if not feed.is_closing and choices.random() < 0.5:
            if coming:
                feed.offer(coming.popleft())
            else:
                feed.is_closing = True
        elif waiting and choices.random() < 0.5:
            finish()
        elif isinstance(work := feed.take(), MicroStep):
            waiting.append(work)
            (scored if work.scores is None else trained).append(id(work.pack))
        else:
            ended = work
            # Only a result, a claim or the end can change the answer.
            assert waiting or not feed.is_closing or ended is StreamEnd.CLOSED
            if waiting and ended is StreamEnd.PAUSED:
                finish()
    while waiting:
        finish()
    packs = sorted(id(pack) for one in claims for pack in one.claim.packs)

    assert packs == sorted(scored) == sorted(trained)
    assert [1.5] * num_claims == [one.done.result().loss for one in claims]


def test_a_lease_that_is_in_the_sum_is_refused_and_counted_once():
    one = claimed(claim_of([0]), lease=3)
    taken = through(feed_of(one, held={3}))

    assert [] == taken
    with pytest.raises(CellError, match="lease 3 is in the sum already"):
        one.done.result()


def test_a_stream_without_claims_pauses_and_one_that_waits_for_scores_never_closes():
    feed = feed_of(claimed(claim_of([0])))
    scoring = feed.take()
    feed.is_closing = True

    assert StreamEnd.PAUSED is feed.take()
    feed.finished(result_of(scoring, [INSIDE]))
    training = feed.take()
    assert StreamEnd.CLOSED is feed.take()
    feed.finished(result_of(training, [INSIDE]))
    feed.is_closing = False
    assert StreamEnd.PAUSED is feed.take()


def test_claims_are_trained_in_the_order_in_which_they_came():
    one, two = (claimed(claim_of([0], [0]), lease=lease) for lease in (0, 1))
    taken = through(feed_of(one, two))
    of_two = [work for work in taken if work.shares is two.claim.shares]

    assert 4 == len(of_two)
    assert taken[4:] == of_two


def test_what_was_not_finished_is_named_oldest_first():
    claims = [claimed(claim_of([0], [0]), lease=lease) for lease in range(3)]
    feed = feed_of(*claims)
    feed.take()
    feed.take()
    feed.take()

    assert claims[:2] == feed.unfinished()
    assert [] == feed.unfinished()


class Trainer:
    """Drives alone: every micro-step comes to something at once, or two of them to an error."""

    is_resting = False

    def __init__(self):
        self.num_drives = 0
        self.error = None
        self.again = Event()

    def drive(self, source):
        self.num_drives += 1
        if self.num_drives > 3:
            self.again.set()
        num_taken = 0
        while self.error is not None:
            num_taken += isinstance(source.take(), MicroStep)
            if num_taken == 2:
                raise self.error
        while isinstance(work := source.take(), MicroStep):
            source.finished(result_of(work, [INSIDE]))
        return work


class Crew:
    """Ranks that are all one."""

    def __init__(self):
        self.trainer = Trainer()
        self.part = self
        self.is_streaming = False
        self.is_dropped = False

    def stream(self):
        self.is_streaming = True

    def streamed(self):
        self.is_streaming = False

    def drop(self):
        self.is_dropped = True

    def end(self):
        self.drop()


@pytest.fixture
def rank_group():
    return Crew()


@pytest.fixture
def driver(rank_group):
    made = Driver(rank_group, SECTION, life_s=0.01)
    yield made
    made.end()


def test_an_order_finds_the_stream_closed_and_all_claims_in_the_sum(driver, rank_group):
    driver.claimed(claimed(claim_of([0]), lease=5))
    assert rank_group.is_streaming

    assert (False, {5}) == driver.do(lambda: (rank_group.is_streaming, set(driver.held)))


def test_a_stream_that_is_paused_says_so_again_and_again(driver, rank_group):
    """Or the other ranks would take the silence for death."""
    driver.claimed(claimed(claim_of([0])))

    assert rank_group.trainer.again.wait(PATIENCE_S)


def test_an_order_that_is_refused_leaves_the_cell_as_it_was(driver):
    def refuse():
        raise CellError("not now")

    with pytest.raises(CellError, match="not now"):
        driver.do(refuse)

    assert 1.0 == driver.do(lambda: 1.0)
    assert driver.failure is None


def test_a_claim_for_a_trainer_that_rests_is_refused_alone(driver, rank_group):
    rank_group.trainer.is_resting = True
    with pytest.raises(CellError, match="restore it first"):
        driver.claimed(claimed(claim_of([0])))
    rank_group.trainer.is_resting = False

    assert 0.5 == driver.claimed(claimed(claim_of([0]))).loss


def test_a_failure_in_the_stream_loses_the_cell_and_blames_the_oldest_claim(driver, rank_group):
    """The others return to the queue with all that the cell held (SPEC 3.2)."""
    rank_group.trainer.error = NotFinite("no number", retryable=False)
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(driver.claimed, claimed(claim_of([0]), lease=lease)) for lease in (0, 1)
        ]
        errors = [one.exception(PATIENCE_S) for one in asked]

    assert {NotFinite, CellGone} == {type(one) for one in errors}
    assert NotFinite is type(driver.lost.result(PATIENCE_S))
    with pytest.raises(CellGone, match="no number"):
        driver.do(lambda: None)


def test_ranks_that_no_longer_stand_together_lose_the_cell(driver, rank_group):
    def part():
        raise CellGone("rank 1 of the cell ended")

    with pytest.raises(CellGone, match="rank 1"):
        driver.do(part)

    assert CellGone is type(driver.lost.result(PATIENCE_S))
    assert rank_group.is_dropped


def test_whoever_waits_is_answered_when_the_cell_ends(rank_group):
    driver = Driver(rank_group, SECTION, life_s=60.0)
    driver.end()

    with pytest.raises(CellGone, match="the cell ends"):
        driver.claimed(claimed(claim_of([0])))
    assert not driver.lost.done()


def test_packs_of_a_claim_may_be_none(driver):
    empty = replace(claim_of([0]), packs=(), shares=())

    assert 0.0 == driver.claimed(claimed(empty)).loss
