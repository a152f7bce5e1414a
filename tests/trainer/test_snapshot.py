"""A copy of a trainer's state is of one version, wherever the state is and whatever goes on."""

import pytest
import torch
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene, a_trainer

from gyre.model.network import Network
from gyre.trainer.offload import Snapshot
from gyre.types.errors import CheckpointError


@pytest.fixture
def scene():
    return a_scene("qwen3")


def stepped(trainer, scene):
    for claim in scene.claims():
        trainer.train(claim, num_executions=NUM_EXECUTIONS)
    trainer.step()


def state_of(trainer):
    return {name: one.to("cpu", copy=True) for name, one in trainer.export().tensors.items()}


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_what_was_copied_stays_as_it_was_when_the_trainer_goes_on(scene):
    trainer = a_trainer(scene)
    snapshot = Snapshot(trainer)
    stepped(trainer, scene)
    snapshot.copy(1)
    before = state_of(trainer)
    stepped(trainer, scene)
    held = snapshot.state()

    assert 1 == held.num_steps
    assert [] == differing(before, held.tensors)
    assert [] != differing(before, state_of(trainer))


def test_the_memory_of_a_copy_is_used_again(scene):
    trainer = a_trainer(scene)
    snapshot = Snapshot(trainer)
    places = []
    for version in (0, 1):
        snapshot.copy(version)
        places.append([one.data_ptr() for one in snapshot.state().tensors.values()])
        stepped(trainer, scene)

    assert places[0] == places[1]


def test_weights_are_the_masters_rounded_and_not_what_an_engine_has_loaded(scene):
    trainer = a_trainer(Network(scene.network.module.bfloat16()))
    snapshot = Snapshot(trainer)
    wanted = {name: one.detach().clone() for name, one in trainer.network.module.named_parameters()}
    with torch.no_grad():
        for one in trainer.network.module.parameters():
            one.zero_()
    snapshot.copy(0)
    found = dict(snapshot.weights())

    assert sorted(wanted) == list(found)
    assert [] == differing(wanted, found)


def test_a_trainer_without_moments_has_weights_to_copy_and_nothing_else(scene):
    trainer = a_trainer(scene, optimizer=None)
    snapshot = Snapshot(trainer)
    snapshot.copy(0)
    named = {name: one.detach() for name, one in trainer.network.module.named_parameters()}

    assert [] == differing(named, dict(snapshot.weights()))
    with pytest.raises(CheckpointError, match="no optimizer"):
        snapshot.state()


def test_another_version_than_the_trainers_is_refused_and_what_was_copied_stays(scene):
    trainer = a_trainer(scene)
    snapshot = Snapshot(trainer)
    snapshot.copy(0)
    before = {name: one.clone() for name, one in snapshot.state().tensors.items()}
    stepped(trainer, scene)
    for version in (0, 2):
        with pytest.raises(CheckpointError, match="the trainer has version 1 by now"):
            snapshot.copy(version)

    assert [] == differing(before, snapshot.state().tensors)


@pytest.mark.filterwarnings("default")
@pytest.mark.gpu
def test_on_a_device_a_copy_made_beside_its_kernels_is_the_same_awake_and_at_rest(scene):
    trainer = a_trainer(Network(scene.network.module.bfloat16().cuda()))
    snapshot = Snapshot(trainer)
    stepped(trainer, scene)
    # What is asked of the device here runs while the copy does.
    trainer.train(scene.claims()[0], num_executions=NUM_EXECUTIONS)
    snapshot.copy(1)
    awake = {name: one.clone() for name, one in snapshot.state().tensors.items()}
    weights = {name: one.clone() for name, one in snapshot.weights()}
    trainer.offload()
    snapshot.copy(1)
    at_rest = dict(snapshot.state().tensors)
    trainer.reload()
    named = {name: one.detach().cpu() for name, one in trainer.network.module.named_parameters()}

    assert [] == differing(awake, at_rest)
    assert [] == differing(awake, state_of(trainer))
    assert [] == differing(named, weights)
    assert all(one.is_pinned() for one in at_rest.values())
