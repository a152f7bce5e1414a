"""Memory that is given back, on a device that has its own."""

import gc

import pytest
import torch
from tests.trainer.support.scenes import NUM_EXECUTIONS, OBJECTIVE, OPTIMIZER, a_scene

from gyre.config.sections import TrainerConfig
from gyre.trainer.offload import OffloadableWeights
from gyre.trainer.trainer import Trainer
from gyre.types.errors import OutOfMemory


def test_weights_that_rest_on_a_cpu_stay_the_same_objects():
    network = a_scene().network
    before = {name: one.data_ptr() for name, one in network.module.named_parameters()}
    weights = OffloadableWeights(network)
    weights.offload()
    assert weights.is_resting
    weights.reload()

    assert before == {name: one.data_ptr() for name, one in network.module.named_parameters()}


@pytest.mark.filterwarnings("default")
@pytest.mark.gpu
def test_device_memory_is_given_back_and_a_full_device_leaves_everything_resting():
    gc.collect()
    others = torch.cuda.memory_allocated()
    scene = a_scene("qwen3", hidden_size=1024, intermediate_size=4096)
    network = scene.network
    network.module.bfloat16().cuda()
    trainer = Trainer(network, section=TrainerConfig(), objective=OBJECTIVE, optimizer=OPTIMIZER)
    for claim in scene.claims():
        trainer.train(claim, num_executions=NUM_EXECUTIONS)
    before = [one.cpu() for one in (*trainer.gradients, *trainer.export().tensors.values())]
    held = torch.cuda.memory_allocated() - others
    trainer.offload(weights=True)

    assert torch.cuda.memory_allocated() - others < held / 4
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - 2**22, dtype=torch.uint8, device="cuda")
    with pytest.raises(OutOfMemory, match="restoring"):
        trainer.reload()
    assert trainer.is_resting
    del hog
    trainer.reload()
    after = [one.cpu() for one in (*trainer.gradients, *trainer.export().tensors.values())]
    assert all(map(torch.equal, before, after))
    assert {"cuda"} == {one.device.type for one in network.module.parameters()}
