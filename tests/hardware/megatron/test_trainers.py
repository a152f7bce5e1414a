"""A trainer whose layers are Megatron's keeps the contract, and computes as the others do."""

import pytest
import torch
from tests.contracts import trainer as suite
from tests.trainer.support import cases
from tests.trainer.support.cells import worst
from torch import nn

from gyre.config.sections import TrainerConfig
from gyre.trainer.megatron.trainer import open_trainer
from gyre.trainer.trainer import Trainer
from gyre.types.errors import ModelError

pytestmark = pytest.mark.megatron


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Megatrons(suite.SmallTrainers):
    kind = open_trainer
    model = cases.network("qwen3")


class ExactMegatrons(Megatrons):
    deterministic = True


@pytest.mark.parametrize("promise", suite.EVERY_TRAINER, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", [Megatrons, ExactMegatrons])
def test_a_trainer_keeps_the_promise_that(kind, promise):
    promise(kind())


def trained(make, family, dtype, checkpoint):
    network = cases.network(family)
    claim = cases.claim(network)
    network.module.to(dtype)
    trainer = make(
        network,
        section=TrainerConfig(checkpoint=checkpoint, logits_tokens=5),
        objective=cases.SECTION,
        optimizer=cases.OPTIMIZER,
    )
    report = trainer.train(claim, num_executions=cases.NUM_EXECUTIONS)
    gradients = {name: one.clone() for name, one in trainer.gradient_views.items()}
    trainer.step()
    return report, gradients, dict(trainer.network.module.named_parameters())


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("family", ["qwen3", "qwen3-tied", "qwen2"])
def test_rows_and_trees_give_the_gradients_and_the_step_of_the_torch_trainer(
    family, dtype, limit, checkpoint
):
    report, gradients, weights = trained(open_trainer, family, dtype, checkpoint)
    theirs, their_gradients, their_weights = trained(Trainer, family, dtype, checkpoint)

    assert pytest.approx(theirs.loss, rel=limit) == report.loss
    assert limit > worst(their_gradients, gradients)
    assert limit > worst(their_weights, weights)


def test_a_model_with_weights_that_megatron_has_no_place_for_is_refused_by_name():
    network = cases.network("llama")
    with pytest.raises(ModelError, match=r"the model has mlp\.down_proj\.bias"):
        open_trainer(network, section=TrainerConfig(), objective=cases.SECTION, optimizer=None)

    assert not any(hasattr(one, "_layer") for one in network.layers)


def test_rotary_angles_with_a_factor_are_refused():
    network = cases.network("qwen3")
    network.decoder.rotary_emb.attention_scaling = 1.2
    with pytest.raises(ModelError, match=r"attention factor of 1\.2"):
        open_trainer(network, section=TrainerConfig(), objective=cases.SECTION, optimizer=None)


def test_megatrons_layers_hold_no_memory_of_their_own():
    trainer = Megatrons().make()
    names = {name for name, _ in trainer.network.module.named_parameters()}

    assert {name for name, _ in Megatrons.model.module.named_parameters()} == names
    assert all(isinstance(one.self_attn, nn.Module) for one in trainer.network.layers)
