"""Weights that a cell shows are taken by another as they are, for as long as they are shown."""

import pytest
import torch
from tests.cuda_lending import ThreadsMemory
from transformers import Qwen3Config, Qwen3ForCausalLM

from gyre.cell.protocol import ExposedWeights
from gyre.cell.weight_sync import WeightPublisher
from gyre.model.network import Network
from gyre.transports.shared_memory import SharedTransport
from gyre.types.errors import ExposureGone, TransferError

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


class Trainer:
    """One's weights, which change with its version."""

    is_resting = False

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.network = Network(Qwen3ForCausalLM(Qwen3Config(**SIZES)).bfloat16())
        self.version = 1

    def step(self):
        with torch.no_grad():
            for one in self.network.module.parameters():
                one.add_(1.0)
        self.version += 1

    @property
    def weights(self):
        return {name: one.detach() for name, one in self.network.module.named_parameters()}


@pytest.fixture
def core():
    return Trainer(1)


@pytest.fixture(params=["main memory", "lent memory"])
def memory(request):
    return ThreadsMemory() if request.param == "lent memory" else None


@pytest.fixture
def shown(core, memory, tmp_path):
    return WeightPublisher(core, SharedTransport(tmp_path, owner="cell-0"), memory)


@pytest.fixture
def other(memory, tmp_path):
    return WeightPublisher(Trainer(2), SharedTransport(tmp_path, owner="cell-1"), memory)


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


def test_another_cell_takes_them_as_they_are(shown, other, core):
    given = shown.expose()

    assert core.version == given.version
    assert sum(one.nbytes for one in core.weights.values()) <= given.num_bytes
    assert same(core.weights, other.taken(given))


def test_a_version_is_shown_once(shown):
    assert shown.expose() is shown.expose()


def test_they_stay_what_they_were_when_the_trainer_steps(shown, other, core):
    before = {name: one.clone() for name, one in core.weights.items()}
    given = shown.expose()
    core.step()

    assert same(before, other.taken(given))


def test_a_new_version_takes_the_place_of_the_one_before(shown, other, core):
    old = shown.expose()
    core.step()
    new = shown.expose()

    assert same(core.weights, other.taken(new))
    with pytest.raises(ExposureGone):
        other.taken(old)


def test_a_trainer_that_rests_lends_nothing_of_its_device(core, tmp_path):
    memory = ThreadsMemory()
    shown = WeightPublisher(core, SharedTransport(tmp_path, owner="cell-0"), memory)
    shown.expose()
    shown.offload()

    assert {} == memory.open
    with pytest.raises(ExposureGone, match="the trainer rests"):
        shown.expose()
    shown.reload()
    assert same(core.weights, shown.taken(shown.expose()))


def test_a_trainer_that_was_never_restored_lends_nothing(core, tmp_path):
    """The network has an engine's weights, which may be of any version."""
    core.is_resting = True
    shown = WeightPublisher(core, SharedTransport(tmp_path, owner="cell-0"), ThreadsMemory())

    with pytest.raises(ExposureGone, match="the trainer rests"):
        shown.expose()
    shown.reload()
    assert core.version == shown.expose().version


def test_weights_of_another_version_leave_no_copy_of_the_old_on_the_device(core, tmp_path):
    memory = ThreadsMemory()
    shown = WeightPublisher(core, SharedTransport(tmp_path, owner="cell-0"), memory)
    shown.expose()
    core.step()
    shown.changed()

    assert {} == memory.open


def test_a_step_during_the_showing_leaves_nothing_shown(core, tmp_path):
    class Stepping(ThreadsMemory):
        def lend(self, tensors, *, with_sums=True):
            core.version += 1
            return super().lend(tensors, with_sums=with_sums)

    memory = Stepping()
    with pytest.raises(ExposureGone, match="changed while they were exposed"):
        WeightPublisher(core, SharedTransport(tmp_path, owner="cell-0"), memory).expose()
    assert {} == memory.open


def test_weights_on_a_device_are_refused_by_who_takes_none(core, tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    given: ExposedWeights = WeightPublisher(core, transport, ThreadsMemory()).expose()

    with pytest.raises(TransferError, match="expected weights in main memory"):
        WeightPublisher(Trainer(2), transport, None).taken(given)
