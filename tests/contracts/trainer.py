"""What every trainer promises to the cell that calls it; each promise is one function."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import inf, nan
from typing import Protocol

import numpy as np
import pytest
import torch

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.protocol import CellTrainer
from gyre.types.errors import CellError, InternalError, ModelError, NotFinite, OutOfMemory
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Score, Share

NUM_EXECUTIONS = 6
LIKELY, UNLIKELY = -0.01, -30.0
"""Log-probabilities when sampled, beside which today's are low, or high."""


class Subject(Protocol):
    """Trainers under test: all alike, of a model with at least 40 tokens and places."""

    def make(
        self, *, version: int = 0, is_core: bool = True, max_norm: float = 1e9, lr: float = 1e-3
    ) -> CellTrainer: ...

    def without_room(self, trainer: CellTrainer) -> AbstractContextManager[object]:
        """While it lasts there is no room for a claim's passes."""
        ...


class SmallTrainers:
    """Trainers of one small network in float64."""

    kind: Callable[..., CellTrainer]
    model: Network
    deterministic = False

    def make(
        self, *, version: int = 0, is_core: bool = True, max_norm: float = 1e9, lr: float = 1e-3
    ) -> CellTrainer:
        # Of the class, because a function would be bound.
        return type(self).kind(
            Network(copy.deepcopy(self.model.module)),
            section=TrainerConfig(checkpoint=False, deterministic=self.deterministic),
            objective=LossConfig(),
            optimizer=OptimizerConfig(lr=lr, max_norm=max_norm) if is_core else None,
            version=version,
        )

    @contextmanager
    def without_room(self, trainer: CellTrainer) -> Iterator[None]:
        def ask(*_: object) -> None:
            torch.empty(2**60, dtype=torch.uint8)

        # In the last pass back, when something of the claim is in the sum.
        hook = trainer.network.layers[0].register_full_backward_hook(ask)
        yield
        hook.remove()


def a_claim(*shares: tuple[float, float, list[int]], first: int = 0) -> Claim:
    """A row and a pack for each: its advantage, how likely its targets were, and its tokens."""
    packs = []
    for number, (_, logprob, ids) in enumerate(shares):
        count = len(ids) - 1
        packs.append(
            Pack(
                ids=np.array(ids[:-1], np.int32),
                positions=np.arange(count, dtype=np.int32),
                tout=np.full(count, count, np.int32),
                predictors=np.arange(count, dtype=np.int32),
                labels=np.array(ids[1:], np.int32),
                behaviour=np.full(count, logprob, np.float32),
                shares=np.full(count, number, np.int32),
            )
        )
    held = tuple(
        Share(execution=ExecutionId(f"e{number}"), advantage=one[0], num_targets=len(one[2]) - 1)
        for number, one in enumerate(shares, first)
    )
    return Claim(shares=held, packs=tuple(packs))


ONE = a_claim((1.0, LIKELY, [1, 7, 9, 3]), (-0.5, UNLIKELY, [1, 8, 8]))
"""Nothing of it is clipped: what is raised has become less likely, what is lowered more."""
OTHER = a_claim((0.75, LIKELY, [2, 30, 31, 32, 9]), first=2)
WORSE = a_claim((-0.5, UNLIKELY, [1, 8, 8]))
CLIPPED = a_claim((1.0, UNLIKELY, [4, 5, 6]), first=3)
"""More likely than it may become by this."""


def train(trainer: CellTrainer, *claims: Claim) -> None:
    for claim in claims:
        trainer.train(claim, num_executions=NUM_EXECUTIONS)


def norm_of(trainer: CellTrainer, *claims: Claim) -> float:
    train(trainer, *claims)
    return trainer.step().gradient_norm


def weights_of(trainer: CellTrainer) -> dict[str, torch.Tensor]:
    """A copy."""
    named = trainer.network.module.named_parameters()
    return {name: one.detach().clone() for name, one in named}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def spoil(trainer: CellTrainer) -> None:
    """Other weights are in the network, as an engine loads them."""
    with torch.no_grad():
        for one in trainer.network.module.parameters():
            one.add_(1.0)


def neutral(claim: Claim) -> list[Score]:
    return [Score(sum_log_ratio=0.0, count=share.num_targets) for share in claim.shares]


def changes_nothing(subject: Subject, doing: Callable[[CellTrainer], object]) -> None:
    """Not the sum, not the weights, not the version."""
    touched, untouched = subject.make(version=3), subject.make(version=3)
    for trainer in (touched, untouched):
        train(trainer, ONE)
    doing(touched)

    for trainer in (touched, untouched):
        train(trainer, OTHER)
    assert untouched.version == touched.version
    assert untouched.score(ONE) == touched.score(ONE)
    assert untouched.step().gradient_norm == touched.step().gradient_norm
    assert untouched.score(ONE) == touched.score(ONE)


def it_has_the_version_it_was_given(subject: Subject) -> None:
    assert 7 == subject.make(version=7).version


def a_step_makes_the_next_version_and_leaves_no_sum(subject: Subject) -> None:
    trainer = subject.make(version=7)
    train(trainer, ONE)
    first, second = trainer.step(), trainer.step()

    assert (8, 9, 9) == (first.version, second.version, trainer.version)
    assert first.gradient_norm > 0
    assert 0.0 == second.gradient_norm


def a_step_from_nothing_is_a_step(subject: Subject) -> None:
    """SPEC 3.3."""
    report = subject.make().step()

    assert (1, 0.0, False) == (report.version, report.gradient_norm, report.is_clipped)


def a_step_raises_what_was_better_and_lowers_what_was_worse(subject: Subject) -> None:
    for claim, sign in ((OTHER, 1), (WORSE, -1)):
        trainer = subject.make(lr=1e-4)
        (before,) = trainer.score(claim)
        norm_of(trainer, claim)
        (after,) = trainer.score(claim)

        assert sign * after.sum_log_ratio > sign * before.sum_log_ratio


def a_large_gradient_is_clipped_and_its_norm_told(subject: Subject) -> None:
    norm = norm_of(subject.make(), ONE)
    trainer = subject.make(max_norm=norm / 2)
    train(trainer, ONE)
    report = trainer.step()

    assert (norm, True) == (report.gradient_norm, report.is_clipped)


def claims_add_up(subject: Subject) -> None:
    assert pytest.approx(2 * norm_of(subject.make(), ONE)) == norm_of(subject.make(), ONE, ONE)


def their_order_does_not_matter(subject: Subject) -> None:
    """SPEC 3.6."""
    one, other = (norm_of(subject.make(), *claims) for claims in [(ONE, OTHER), (OTHER, ONE)])

    assert pytest.approx(one, rel=1e-12) == other


def a_claim_of_a_larger_batch_weighs_less(subject: Subject) -> None:
    whole, half = subject.make(), subject.make()
    loss = whole.train(ONE, num_executions=5).loss

    assert pytest.approx(loss / 2) == half.train(ONE, num_executions=10).loss
    assert pytest.approx(whole.step().gradient_norm / 2) == half.step().gradient_norm


def a_claim_without_packs_adds_nothing(subject: Subject) -> None:
    trainer = subject.make()
    report = trainer.train(Claim(shares=(), packs=()), num_executions=NUM_EXECUTIONS)

    assert (0.0, ()) == (report.loss, report.scores)
    assert 0.0 == trainer.step().gradient_norm


def a_claim_over_its_budget_counts_the_same(subject: Subject) -> None:
    plain = norm_of(subject.make(), ONE)

    assert pytest.approx(plain, rel=1e-12) == norm_of(subject.make(), replace(ONE, oversize=True))


def a_report_tells_what_was_there(subject: Subject) -> None:
    report = subject.make().train(ONE, num_executions=NUM_EXECUTIONS)

    assert (2, 5, 5) == (report.work.num_packs, report.work.num_tokens, report.work.num_targets)
    assert (5, 3, 2) == (
        report.measures.num_targets,
        report.measures.num_raised,
        report.measures.num_lowered,
    )


def scores_are_of_every_share_and_add_nothing(subject: Subject) -> None:
    """SPEC 8.3."""
    trainer = subject.make()
    scores = trainer.score(ONE)

    assert [3, 2] == [one.count for one in scores]
    assert scores == trainer.train(ONE, num_executions=NUM_EXECUTIONS).scores
    changes_nothing(subject, lambda touched: touched.score(OTHER))


def an_execution_that_drifted_too_far_gives_no_gradient(subject: Subject) -> None:
    """SPEC 8.2."""
    trainer = subject.make()
    report = trainer.train(CLIPPED, num_executions=NUM_EXECUTIONS)

    assert (2, 2) == (report.measures.num_raised, report.measures.num_raised_clipped)
    assert 0.0 == trainer.step().gradient_norm


def scores_that_are_given_stand_for_its_own(subject: Subject) -> None:
    trainer, given = subject.make(), neutral(CLIPPED)
    report = trainer.train(CLIPPED, num_executions=NUM_EXECUTIONS, scores=given)

    assert tuple(given) == report.scores
    assert trainer.step().gradient_norm > 0


def scores_of_its_own_that_are_given_change_nothing(subject: Subject) -> None:
    own, given = subject.make(), subject.make()
    train(own, ONE)
    given.train(ONE, num_executions=NUM_EXECUTIONS, scores=given.score(ONE))

    assert own.step().gradient_norm == given.step().gradient_norm


def scores_of_a_part_are_a_broken_promise(subject: Subject) -> None:
    scores = [replace(one, count=one.count - 1) for one in neutral(OTHER)]

    def refused(trainer: CellTrainer) -> None:
        with pytest.raises(InternalError):
            trainer.train(OTHER, num_executions=NUM_EXECUTIONS, scores=scores)

    changes_nothing(subject, refused)


def what_cannot_be_computed_is_refused(subject: Subject) -> None:
    """SPEC 3.2: whole, and not to be tried again."""
    first, second = ONE.packs
    wrong = [
        replace(second, labels=second.labels + 10**6),
        replace(second, ids=second.ids - 100),
        replace(second, shares=second.shares + 5),
        replace(second, behaviour=second.behaviour * np.float32(nan)),
    ]
    claims = [replace(ONE, packs=(first, pack)) for pack in wrong] + [replace(ONE, packs=(first,))]

    def refused(trainer: CellTrainer) -> None:
        for claim in claims:
            for asked in (
                lambda claim=claim: train(trainer, claim),
                lambda claim=claim: trainer.score(claim),
            ):
                with pytest.raises(CellError) as error:
                    asked()
                assert not error.value.retryable

    changes_nothing(subject, refused)


def what_is_no_number_is_not_in_the_sum(subject: Subject) -> None:
    """SPEC 3.3; the first pack of the claim is sound."""
    sound, other = ONE.shares

    def refused(trainer: CellTrainer) -> None:
        for advantage in (nan, -inf):
            claim = replace(ONE, shares=(sound, replace(other, advantage=advantage)))
            with pytest.raises(NotFinite):
                train(trainer, claim)
        scores = [replace(one, sum_log_ratio=nan) for one in neutral(ONE)]
        with pytest.raises(NotFinite):
            trainer.train(ONE, num_executions=NUM_EXECUTIONS, scores=scores)

    changes_nothing(subject, refused)


def no_room_leaves_everything_as_it_was(subject: Subject) -> None:
    def refused(trainer: CellTrainer) -> None:
        with subject.without_room(trainer), pytest.raises(OutOfMemory) as error:
            train(trainer, OTHER)
        assert error.value.retryable

    changes_nothing(subject, refused)


def clearing_forgets_the_claims_and_nothing_else(subject: Subject) -> None:
    trainer, fresh = subject.make(), subject.make()
    train(trainer, ONE)
    trainer.clear()

    assert 0 == trainer.version
    assert norm_of(fresh, OTHER) == norm_of(trainer, OTHER)


def rest_keeps_everything(subject: Subject) -> None:
    """Either may be said twice."""

    def rested(trainer: CellTrainer) -> None:
        for weights in (False, True):
            trainer.offload(weights=weights)
            trainer.offload(weights=weights)
            trainer.reload()
            trainer.reload()

    changes_nothing(subject, rested)


def one_that_rests_does_nothing(subject: Subject) -> None:
    def refused(trainer: CellTrainer) -> None:
        trainer.offload()
        assert trainer.is_resting
        for asked in (
            lambda: train(trainer, OTHER),
            lambda: trainer.score(OTHER),
            lambda: trainer.step(),
            lambda: trainer.load_weights(weights_of(trainer), version=9),
        ):
            with pytest.raises(CellError, match="restore"):
                asked()
        trainer.reload()
        assert not trainer.is_resting

    changes_nothing(subject, refused)


def a_sum_of_other_cells_takes_the_place_of_its_own(subject: Subject) -> None:
    """SPEC 3.3: what the core steps is the sum over all cells."""
    core, satellite, alone = subject.make(), subject.make(is_core=False), subject.make()
    train(core, ONE)
    train(satellite, OTHER)
    train(alone, ONE, OTHER)
    sums = zip(core.gradients, satellite.gradients, strict=True)
    core.replace_gradients([one + other for one, other in sums])

    assert pytest.approx(alone.step().gradient_norm, rel=1e-12) == core.step().gradient_norm


def a_sum_of_another_model_is_refused(subject: Subject) -> None:
    def refused(trainer: CellTrainer) -> None:
        with pytest.raises(CellError, match="another model"):
            trainer.replace_gradients([one[:-1] for one in trainer.gradients])

    changes_nothing(subject, refused)


def weights_of_another_version_take_the_place_of_its_own(subject: Subject) -> None:
    """SPEC 3.1: those of the core, with which a satellite begins."""
    core, satellite = subject.make(), subject.make(is_core=False)
    norm_of(core, ONE)
    satellite.load_weights(weights_of(core), version=core.version)

    assert same(weights_of(core), weights_of(satellite))
    assert (1, core.score(OTHER)) == (satellite.version, satellite.score(OTHER))


def weights_of_another_model_are_refused(subject: Subject) -> None:
    def refused(trainer: CellTrainer) -> None:
        name, *_ = weights_of(trainer)
        wrong = weights_of(trainer) | {name: torch.zeros(1)}
        with pytest.raises(ModelError):
            trainer.load_weights(wrong, version=9)

    changes_nothing(subject, refused)


def the_core_has_its_weights_after_an_engine_loaded_others(subject: Subject) -> None:
    """SPEC 2.4: engine and trainer compute with one network."""
    core, satellite = subject.make(), subject.make(is_core=False)
    own = weights_of(core)
    for trainer in (core, satellite):
        spoil(trainer)
    other = weights_of(satellite)
    for trainer in (core, satellite):
        trainer.rewrite()

    assert same(own, weights_of(core))
    assert same(other, weights_of(satellite))


def the_step_after_a_checkpoint_is_the_one_of_a_core_that_was_never_stopped(
    subject: Subject,
) -> None:
    """SPEC 10: the state is given whole, also at rest, and no copy."""
    core, other = subject.make(), subject.make()
    norm_of(core, ONE)
    core.offload()
    state = core.export()
    core.reload()
    train(other, OTHER)
    other.load(state, version=1)

    assert same(weights_of(core), weights_of(other))
    assert norm_of(core, OTHER) == norm_of(other, OTHER)
    assert (2, 2) == (core.version, other.version)
    assert same(weights_of(core), weights_of(other))


def a_satellite_sums_and_does_not_step(subject: Subject) -> None:
    """SPEC 3.1."""
    satellite = subject.make(is_core=False)
    report = satellite.train(ONE, num_executions=NUM_EXECUTIONS)
    with pytest.raises(CellError) as error:
        satellite.step()

    assert not error.value.retryable
    assert (0, subject.make().score(ONE)) == (satellite.version, report.scores)
    assert (True, False) == (subject.make().has_optimizer, satellite.has_optimizer)
    with pytest.raises(CellError, match="no optimizer"):
        satellite.export()


EVERY_TRAINER = [
    it_has_the_version_it_was_given,
    a_step_makes_the_next_version_and_leaves_no_sum,
    a_step_from_nothing_is_a_step,
    a_step_raises_what_was_better_and_lowers_what_was_worse,
    a_large_gradient_is_clipped_and_its_norm_told,
    claims_add_up,
    their_order_does_not_matter,
    a_claim_of_a_larger_batch_weighs_less,
    a_claim_without_packs_adds_nothing,
    a_claim_over_its_budget_counts_the_same,
    a_report_tells_what_was_there,
    scores_are_of_every_share_and_add_nothing,
    an_execution_that_drifted_too_far_gives_no_gradient,
    scores_that_are_given_stand_for_its_own,
    scores_of_its_own_that_are_given_change_nothing,
    scores_of_a_part_are_a_broken_promise,
    what_cannot_be_computed_is_refused,
    what_is_no_number_is_not_in_the_sum,
    no_room_leaves_everything_as_it_was,
    clearing_forgets_the_claims_and_nothing_else,
    rest_keeps_everything,
    one_that_rests_does_nothing,
    a_sum_of_other_cells_takes_the_place_of_its_own,
    a_sum_of_another_model_is_refused,
    weights_of_another_version_take_the_place_of_its_own,
    weights_of_another_model_are_refused,
    the_core_has_its_weights_after_an_engine_loaded_others,
    the_step_after_a_checkpoint_is_the_one_of_a_core_that_was_never_stopped,
    a_satellite_sums_and_does_not_step,
]
