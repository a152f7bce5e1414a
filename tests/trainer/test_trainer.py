"""A trainer on one device: claims whole or not at all, steps, rest, and what it refuses."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.trainer.support.scenes import NUM_EXECUTIONS, OPTIMIZER, a_scene, a_trainer

from gyre.config.sections import OptimizerConfig
from gyre.model.network import Network
from gyre.trainer.optimizer import OptimizerState
from gyre.trainer.trainer import arithmetic
from gyre.types.errors import CellError, ModelError, NotFinite, OutOfMemory
from gyre.types.training import Claim


@pytest.fixture(scope="module")
def scene():
    return a_scene("qwen3")


@pytest.fixture
def trainer(scene):
    return a_trainer(scene)


def train(trainer, claims):
    return [trainer.train(claim, num_executions=NUM_EXECUTIONS) for claim in claims]


def everything(trainer):
    """Copies of all that a trainer holds, by name."""
    held = {f"weight/{name}": one for name, one in trainer.network.module.named_parameters()}
    held |= {f"sum/{name}": one for name, one in trainer.gradient_views.items()}
    held |= trainer.export().tensors
    return {name: one.detach().clone() for name, one in held.items()} | {
        "version": torch.tensor(trainer.version),
        "steps": torch.tensor(trainer.export().num_steps),
    }


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def joined(claims):
    """Several claims as one."""
    shares, packs = [], []
    for claim in claims:
        offset = np.int32(len(shares))
        packs += [replace(pack, shares=pack.shares + offset) for pack in claim.packs]
        shares += claim.shares
    return Claim(shares=tuple(shares), packs=tuple(packs))


def test_a_step_is_clipped_adam_on_the_summed_gradient(scene):
    section = OptimizerConfig(lr=1e-2, max_norm=0.1)
    trainer = a_trainer(scene, optimizer=section)
    theirs = copy.deepcopy(trainer.network.module)
    train(trainer, scene.claims())
    report = trainer.step()

    size = float(torch.cat([one.flatten() for one in scene.gradients.values()]).norm())
    for name, one in theirs.named_parameters():
        one.grad = scene.gradients[name] * (0.1 / size)
    torch.optim.AdamW(
        theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-15, weight_decay=0.01
    ).step()
    expected = dict(theirs.named_parameters())
    for name, one in trainer.network.module.named_parameters():
        # Where a gradient is nearly zero, Adam's quotient shows its last bits.
        torch.testing.assert_close(one, expected[name], rtol=1e-7, atol=1e-7)
    assert pytest.approx(size, rel=1e-12) == report.gradient_norm
    assert size > 0.1
    assert (True, 1, 1, 1e-2) == (report.is_clipped, report.version, trainer.version, report.lr)
    assert all(0 == one.count_nonzero() for one in trainer.gradients)


def test_a_small_gradient_is_not_clipped(scene):
    trainer = a_trainer(scene, optimizer=OptimizerConfig(max_norm=1e9))
    train(trainer, scene.claims())

    assert not trainer.step().is_clipped


def test_a_step_raises_what_was_better_and_lowers_what_was_worse(scene):
    trainer = a_trainer(scene, optimizer=OptimizerConfig(lr=1e-4, weight_decay=0.0))
    (claim,) = scene.claims([scene.executions[0], scene.executions[1]], pack_tokens=1000)
    better, worse = trainer.score(claim)
    train(trainer, [claim])
    trainer.step()
    better_now, worse_now = trainer.score(claim)

    assert ["e0", "e1"] == [share.execution for share in claim.shares]
    assert better_now.sum_log_ratio > better.sum_log_ratio
    assert worse_now.sum_log_ratio < worse.sum_log_ratio


def test_a_batch_without_gradient_still_steps(scene, trainer):
    """L08, SPEC 3.3: weights decay, and the version moves."""
    clipped = [one for one in scene.executions if one.execution in {"e2", "e3", "e4"}]
    reports = train(trainer, scene.claims(clipped))
    before = everything(trainer)
    report = trainer.step()

    assert all(one.work.num_skipped == one.work.num_packs > 0 for one in reports)
    assert [0.0] == [sum(one.loss for one in reports)]
    assert (0.0, 1) == (report.gradient_norm, trainer.version)
    assert all(
        torch.equal(one, before[f"weight/{name}"] * (1 - OPTIMIZER.lr * 0.01))
        for name, one in trainer.network.module.named_parameters()
    )


def test_clipped_packs_have_no_backward_pass(scene, trainer):
    passes = []
    trainer.network.layers[0].register_full_backward_hook(lambda *_: passes.append(1))
    claims = [claim for one in scene.executions for claim in scene.claims([one], pack_tokens=1000)]
    reports = train(trainer, claims)

    assert len(reports) - 2 == len(passes)
    assert ["e2", "e3"] == [
        claim.shares[0].execution
        for claim, report in zip(claims, reports, strict=True)
        if report.work.num_skipped
    ]


def test_a_weight_that_is_no_number_stops_the_claim_and_leaves_the_sum(scene, trainer):
    first, *rest = scene.claims(pack_tokens=24)
    train(trainer, [first])
    weight = trainer.network.layers[1].mlp.up_proj.weight
    good = weight.detach().clone()
    before = everything(trainer)
    with torch.no_grad():
        weight[0, 0] = torch.nan
    with pytest.raises(NotFinite, match="execution e"):
        train(trainer, rest)
    with torch.no_grad():
        weight.copy_(good)

    assert [] == differing(before, everything(trainer))
    train(trainer, rest)
    whole = a_trainer(scene)
    train(whole, [first, *rest])
    assert [] == differing(everything(whole), everything(trainer))


def test_a_gradient_that_is_no_number_stops_the_step_and_changes_nothing(scene, trainer):
    train(trainer, scene.claims())
    trainer.gradients[0][5] = torch.inf
    before = everything(trainer)
    with pytest.raises(NotFinite, match="step from version 0"):
        trainer.step()

    assert [] == differing(before, everything(trainer))


@pytest.mark.parametrize("moment", ["forward", "backward"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_claim_without_room_leaves_the_sum_as_it_was(scene, moment, is_first):
    """Also when packs before the one that failed are in the sum already."""
    trainer = a_trainer(scene)
    live = [one for one in scene.executions if one.execution in {"e0", "e1", "e5"}]
    begun, *rest = [scene.claims([one], pack_tokens=1000)[0] for one in live]
    claim = joined(rest)
    if not is_first:
        train(trainer, [begun])
    before = everything(trainer)
    passes = []

    def refuse(*_):
        passes.append(moment)
        if len(passes) == 2:
            torch.empty(2**60, dtype=torch.uint8)

    layer = trainer.network.layers[1]
    register = {
        "forward": layer.register_forward_hook,
        "backward": layer.register_full_backward_hook,
    }
    hook = register[moment](refuse)
    assert 1 < len(claim.packs)
    with pytest.raises(OutOfMemory, match="training on a claim"):
        train(trainer, [claim])
    hook.remove()

    assert 2 == len(passes)
    assert [] == differing(before, everything(trainer))
    assert all(one.grad is None for one in trainer.network.module.parameters())
    train(trainer, [claim])
    assert differing(before, everything(trainer))


def test_grouping_packs_into_claims_changes_no_bit(scene):
    """SPEC 3.6."""
    claims = [claim for one in scene.executions for claim in scene.claims([one], pack_tokens=20)]
    outcomes = []
    for given in (claims, [joined(claims)], [joined(claims[:2]), joined(claims[2:])]):
        trainer = a_trainer(scene, deterministic=True, checkpoint=True)
        train(trainer, given)
        trainer.step()
        outcomes.append(everything(trainer))

    assert [] == differing(outcomes[0], outcomes[1])
    assert [] == differing(outcomes[0], outcomes[2])
    assert not torch.are_deterministic_algorithms_enabled()


def test_resting_is_idempotent_and_keeps_every_bit(scene, trainer):
    train(trainer, scene.claims()[:1])
    before = everything(trainer)
    trainer.offload()
    trainer.offload(weights=True)
    assert trainer.is_resting
    for refused in (
        lambda: train(trainer, scene.claims()),
        lambda: trainer.score(scene.claims()[0]),
        lambda: trainer.step(),
        lambda: trainer.load_weights({}, version=3),
        lambda: trainer.load(trainer.export(), version=3),
    ):
        with pytest.raises(CellError, match="restore"):
            refused()
    trainer.reload()
    trainer.reload()

    assert [] == differing(before, everything(trainer))
    trainer.step()
    assert 1 == trainer.version


def test_sums_that_are_clear_rest_without_a_copy(scene, trainer):
    trainer.offload()
    trainer.reload()
    reports = train(trainer, scene.claims())

    assert pytest.approx(scene.loss, rel=1e-12) == sum(one.loss for one in reports)


def test_sums_reduced_in_place_are_zero_after_the_step(scene, trainer):
    """Though the core trained on no claim of its own."""
    given = a_trainer(scene, optimizer=None)
    train(given, scene.claims())
    for mine, other in zip(trainer.gradients, given.gradients, strict=True):
        mine.add_(other)
    report = trainer.step()

    assert report.gradient_norm > 0
    assert 0.0 == trainer.step().gradient_norm


def test_clearing_forgets_the_batch(scene, trainer):
    before = everything(trainer)
    train(trainer, scene.claims())
    assert differing(before, everything(trainer))
    trainer.clear()

    assert [] == differing(before, everything(trainer))


def test_a_satellite_sums_and_does_not_step(scene):
    satellite = a_trainer(scene, optimizer=None)
    train(satellite, scene.claims())

    with pytest.raises(CellError, match="no optimizer"):
        satellite.step()
    with pytest.raises(CellError, match="no optimizer"):
        satellite.export()
    assert any(one.count_nonzero() for one in satellite.gradients)


def test_sums_of_another_model_are_refused(scene, trainer):
    before = everything(trainer)
    with pytest.raises(CellError, match="another model"):
        trainer.add_gradients([torch.zeros(3)])

    assert [] == differing(before, everything(trainer))


def test_weights_are_loaded_unrounded_into_masters(scene):
    narrow = Network(copy.deepcopy(scene.network.module).bfloat16())
    trainer = a_trainer(narrow)
    single = copy.deepcopy(scene.network.module).float()
    given = {name: one.detach() * 1.01 for name, one in single.named_parameters()}
    trainer.load_weights(given, version=5)

    assert 5 == trainer.version
    for name, one in trainer.network.module.named_parameters():
        assert torch.equal(one, given[name].bfloat16())
        assert torch.equal(trainer.export().tensors[f"master/{name}"], given[name])
    before = everything(trainer)
    name = next(iter(given))
    with pytest.raises(ModelError):
        trainer.load_weights({**given, name: given[name][:1]}, version=6)
    assert [] == differing(before, everything(trainer))


def test_a_checkpoint_goes_on_to_the_same_weights(scene):
    one, other = a_trainer(scene), a_trainer(scene)
    train(one, scene.claims())
    one.step()
    state = one.export()
    copied = {name: tensor.clone() for name, tensor in state.tensors.items()}
    other.load(OptimizerState(num_steps=state.num_steps, tensors=copied), version=1)
    for trainer in (one, other):
        train(trainer, scene.claims())
        trainer.step()

    assert [] == differing(everything(one), everything(other))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("labels", 61, "the vocabulary has 61"),
        ("ids", -1, r"ids\[0\] is -1"),
        ("positions", 64, "the model's context is 64"),
        ("shares", 9, "a target of share 9"),
        ("behaviour", np.nan, "not a log-probability"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(scene, trainer, field, value, said):
    claim = scene.claims()[0]
    wrong = getattr(claim.packs[0], field).copy()
    wrong[0] = value
    broken = replace(claim, packs=(replace(claim.packs[0], **{field: wrong}), *claim.packs[1:]))
    before = everything(trainer)
    for refused in (
        lambda: trainer.train(broken, num_executions=NUM_EXECUTIONS),
        lambda: trainer.score(broken),
    ):
        with pytest.raises(CellError, match=said) as error:
            refused()
        assert not error.value.retryable

    assert [] == differing(before, everything(trainer))


def test_a_claim_that_lacks_targets_is_refused(scene, trainer):
    """SPEC 3.2: a claim holds whole executions, or their ratios would be of a part."""
    claim = joined(scene.claims(pack_tokens=24))
    with pytest.raises(CellError, match="targets of e"):
        trainer.train(replace(claim, packs=claim.packs[:1]), num_executions=NUM_EXECUTIONS)


def test_work_is_counted_and_seconds_are_given(scene, trainer):
    claim = joined(scene.claims(pack_tokens=24))
    report = trainer.train(claim, num_executions=NUM_EXECUTIONS)
    shape, work = trainer.network.shape, report.work
    forward = [
        shape.forward_flops(pack.num_tokens, pack.num_targets, pack.num_pairs)
        for pack in claim.packs
    ]

    assert sum(pack.num_tokens for pack in claim.packs) == work.num_tokens
    assert sum(share.num_targets for share in claim.shares) == work.num_targets
    assert (len(claim.packs), 0) == (work.num_packs, work.num_padding)
    assert sum(forward) < work.model_flops <= 3 * sum(forward)
    assert work.model_flops / work.total_s / 1e12 == pytest.approx(work.utilisation(1e12))
    assert [share.num_targets for share in claim.shares] == [one.count for one in report.scores]


def test_the_temperature_of_the_rollouts_is_that_of_the_ratios(scene):
    """T28: under twice the temperature logits count half."""
    halved = copy.deepcopy(scene.network.module)
    with torch.no_grad():
        halved.get_output_embeddings().weight.div_(2)
    warm, plain = a_trainer(scene, temperature=2.0), a_trainer(Network(halved))
    for claim in scene.claims():
        for one, two in zip(warm.score(claim), plain.score(claim), strict=True):
            assert two.sum_log_ratio == pytest.approx(one.sum_log_ratio, rel=1e-12)


def test_a_claim_without_packs_adds_nothing(trainer):
    report = trainer.train(Claim(shares=(), packs=()), num_executions=NUM_EXECUTIONS)

    assert (0.0, ()) == (report.loss, report.scores)
    assert all(0 == one.count_nonzero() for one in trainer.gradients)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 8e-2)])
def test_narrow_models_stay_near_float64_with_the_same_weights(scene, dtype, most):
    """Where no execution is near its bound: there a rounding may decide for the other side."""
    far = [
        replace(one, rows=tuple(shifted(row, one.advantage) for row in one.rows))
        for one in scene.executions
        if one.execution in {"e0", "e5"}
    ]
    rounded = copy.deepcopy(scene.network.module).to(dtype)
    narrow = a_trainer(Network(rounded), checkpoint=True)
    wide = a_trainer(Network(copy.deepcopy(rounded).double()))
    found, expected = (
        sum(one.loss for one in train(trainer, scene.claims(far))) for trainer in (narrow, wide)
    )

    assert found == pytest.approx(expected, rel=most)
    for name, view in wide.gradient_views.items():
        error = (narrow.gradient_views[name].double() - view).norm() / view.norm()
        assert error < most, name
    assert {torch.float32} == {one.dtype for one in narrow.gradients}


def shifted(row, advantage):
    """Sampled as if the policy had since moved the way the advantage does not drive it."""
    return replace(row, logprobs=row.logprobs + np.float32(0.3 * np.sign(advantage)))


@pytest.mark.parametrize("last", [0, 1])
def test_the_mode_of_a_process_is_as_before_once_no_trainer_asks_for_it(last, monkeypatch):
    """Whichever of two threads ends first; one that does not ask changes nothing."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    asking = [arithmetic(deterministic=True), arithmetic(deterministic=True)]
    before = torch.get_deterministic_debug_mode()
    with arithmetic(deterministic=False):
        for one in asking:
            one.__enter__()
        asking[1 - last].__exit__(None, None, None)
        during = torch.are_deterministic_algorithms_enabled()
    still = torch.are_deterministic_algorithms_enabled()
    asking[last].__exit__(None, None, None)

    assert during
    assert still
    assert before == torch.get_deterministic_debug_mode()
