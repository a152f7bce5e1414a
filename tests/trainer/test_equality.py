"""One update, however it is computed: tree, rows, packs, order, memory (SPEC 3.6, 8.5)."""

import numpy as np
import pytest
import torch
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene, a_trainer

from gyre.model.packed_batch import packed
from gyre.trainer.activation_checkpointing import ActivationCheckpointing
from gyre.trainer.logprobs import target_logprobs
from gyre.trainer.loss import add_scores

FAMILIES = ["llama", "qwen2", "qwen3"]
SCENES = {}


@pytest.fixture(params=FAMILIES)
def scene(request):
    return scene_of(request.param)


def scene_of(family):
    if family not in SCENES:
        SCENES[family] = a_scene(family)
    return SCENES[family]


def trained(scene, claims, *, recompute=ActivationCheckpointing.NOTHING, scored=False):
    """Loss and gradient of all claims, by a new trainer of the same network."""
    trainer = a_trainer(scene)
    trainer.recompute = recompute
    loss = 0.0
    for claim in claims:
        scores = trainer.score(claim) if scored else None
        loss += trainer.train(claim, num_executions=NUM_EXECUTIONS, scores=scores).loss
    return loss, {name: view.clone() for name, view in trainer.gradient_views.items()}


def worst(scene, found):
    """The largest relative difference from the literal computation, of the loss or a gradient."""
    loss, gradients = found
    assert scene.gradients.keys() == gradients.keys()
    differences = [abs(loss - scene.loss) / abs(scene.loss)]
    for name, expected in scene.gradients.items():
        assert 0 < expected.abs().max()
        differences.append(float((gradients[name] - expected).abs().max() / expected.abs().max()))
    # Unlike max, which passes over what is no number.
    return float(np.max(differences))


def test_the_scene_has_what_matters(scene):
    """L06, L08: shared predictors, clipped executions of either sign, one without advantage."""
    (claim, *_) = scene.claims(pack_tokens=1000)
    (pack,) = claim.packs
    report = a_trainer(scene).train(claim, num_executions=NUM_EXECUTIONS)

    assert len(np.unique(pack.predictors)) < len(pack.predictors)
    assert 0 < report.measures.num_raised_clipped < report.measures.num_raised
    assert 0 < report.measures.num_lowered_clipped < report.measures.num_lowered
    assert {"e0", "e1", "e2", "e3", "e5"} == {share.execution for share in claim.shares}
    assert pack.num_tokens < sum(len(row.ids) for one in scene.executions for row in one.rows)


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("pack_tokens", [24, 64, 1000])
def test_trees_and_rows_give_the_gradient_of_plain_paths(scene, sharing, pack_tokens):
    """L01, L03, L06, L07, L08: in packs of any size, several executions in one."""
    claims = scene.claims(pack_tokens=pack_tokens, sharing=sharing)

    assert worst(scene, trained(scene, claims)) < 1e-12


@pytest.mark.parametrize(
    "recompute", [ActivationCheckpointing.DENSE, ActivationCheckpointing.LAYER]
)
def test_computing_again_changes_nothing(scene, recompute):
    claims = scene.claims()

    assert worst(scene, trained(scene, claims, recompute=recompute)) < 1e-12


def test_neither_order_nor_grouping_of_executions_matters():
    """L03."""
    scene = scene_of("qwen3")
    backwards = scene.claims(list(reversed(scene.executions)), pack_tokens=30)
    alone = [claim for one in scene.executions for claim in scene.claims([one], pack_tokens=16)]

    assert worst(scene, trained(scene, reversed(backwards))) < 1e-12
    assert worst(scene, trained(scene, alone)) < 1e-12


def test_scores_from_elsewhere_give_the_same_gradient():
    """L03, SPEC 8.3: scored by another trainer, in other packs, in another order."""
    scene = scene_of("llama")
    trainer = a_trainer(scene)
    scores = {}
    for one in scene.executions:
        for claim in scene.claims([one], pack_tokens=1, sharing=False):
            parts = [trainer.score(claim)]
            scores[claim.shares[0].execution] = add_scores(parts)[0]
    loss = 0.0
    for claim in scene.claims():
        given = [scores[share.execution] for share in claim.shares]
        loss += trainer.train(claim, num_executions=NUM_EXECUTIONS, scores=given).loss

    assert worst(scene, (loss, trainer.gradient_views)) < 1e-12
    assert worst(scene, trained(scene, scene.claims(), scored=True)) < 1e-12


def test_an_oversize_claim_is_scored_first_and_counts_the_same():
    scene = scene_of("llama")
    claims = scene.claims(pack_tokens=16, claim_tokens=16)

    assert any(claim.oversize for claim in claims)
    assert worst(scene, trained(scene, claims)) < 1e-12


def test_padding_changes_nothing():
    """L07: neither behind one row nor behind a tree."""
    scene = scene_of("qwen3")
    claims = scene.claims() + scene.claims(pack_tokens=1, sharing=False)
    settings = {
        "recompute": ActivationCheckpointing.NOTHING,
        "logits_tokens": 100,
        "temperature": 1.0,
    }
    for pack in [pack for claim in claims for pack in claim.packs]:
        plain, padded = (
            target_logprobs(scene.network, packed(pack, "cpu", multiple=size), **settings)
            for size in (1, 64)
        )
        torch.testing.assert_close(padded, plain, rtol=1e-12, atol=1e-13)


def test_cells_sum_to_the_same_gradient():
    """SPEC 3.3: claims of two trainers, added at the core."""
    scene = scene_of("qwen2")
    claims = scene.claims(pack_tokens=24)
    core, satellite = a_trainer(scene), a_trainer(scene, optimizer=None)
    loss = 0.0
    assert 1 < len(claims)
    for number, claim in enumerate(claims):
        cell = (core, satellite)[number % 2]
        loss += cell.train(claim, num_executions=NUM_EXECUTIONS).loss
    core.add_gradients(satellite.gradients)

    assert worst(scene, (loss, core.gradient_views)) < 1e-12
