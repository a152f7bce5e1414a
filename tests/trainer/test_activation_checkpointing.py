"""What is computed twice, counted at the kernels."""

from collections import Counter

import pytest
import torch
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene, a_trainer
from torch.utils._python_dispatch import TorchDispatchMode

from gyre.trainer.activation_checkpointing import ActivationCheckpointing, recompute_for

ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
DENSE = "aten::silu"


class Kernels(TorchDispatchMode):
    """Counts every kernel that really runs."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def counted(recompute):
    scene = a_scene()
    trainer = a_trainer(scene)
    trainer.recompute = recompute
    (claim,) = scene.claims(scene.executions[:1], pack_tokens=1000)
    with Kernels() as kernels:
        trainer.train(claim, num_executions=NUM_EXECUTIONS)
    return kernels.counts[ATTENTION], kernels.counts[DENSE]


def test_only_what_is_said_runs_twice():
    attention, dense = counted(ActivationCheckpointing.NOTHING)

    assert (attention, 2 * dense) == counted(ActivationCheckpointing.DENSE)
    assert (2 * attention, 2 * dense) == counted(ActivationCheckpointing.LAYER)


def test_a_forward_pass_alone_computes_nothing_twice():
    scene = a_scene()
    trainer = a_trainer(scene, checkpoint=True)
    (claim,) = scene.claims(scene.executions[:1], pack_tokens=1000)
    with Kernels() as kernels:
        trainer.score(claim)

    assert trainer.network.shape.layers == kernels.counts[DENSE]


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [(False, ActivationCheckpointing.NOTHING), (True, ActivationCheckpointing.LAYER)],
)
def test_the_section_decides(checkpoint, expected):
    trainer = a_trainer(a_scene(), checkpoint=checkpoint)

    assert expected == trainer.recompute == recompute_for(trainer.network, checkpoint=checkpoint)


def test_computing_again_keeps_a_fraction_of_what_a_layer_saves():
    assert 4 * kept_bytes(ActivationCheckpointing.LAYER) < kept_bytes(
        ActivationCheckpointing.NOTHING
    )


def kept_bytes(recompute):
    """Saved by graphs for the way back, weights left out, each storage once."""
    scene = a_scene()
    trainer = a_trainer(scene)
    trainer.recompute = recompute
    (claim,) = scene.claims(scene.executions[:1], pack_tokens=1000)
    weights = {one.data_ptr() for one in trainer.network.module.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.train(claim, num_executions=NUM_EXECUTIONS)
    return sum(kept.values())
