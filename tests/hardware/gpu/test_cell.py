"""Engine and trainer on CUDA: they agree, give their memory back, and survive having none."""

import numpy as np
import pytest
import torch
from benchmarks.gpu import agree
from transformers import Qwen3Config, Qwen3ForCausalLM

from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.inference.engine.cuda_graphs import GraphForward
from gyre.inference.engine.engine import EngineCore
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer
from gyre.types.errors import OutOfMemory
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Share

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def network(device="cuda", dtype=torch.bfloat16):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return Network(Qwen3ForCausalLM(config).to(device, dtype).eval())


@pytest.fixture(scope="module")
def scene():
    return agree.Scene(network(), num_calls=6, num_prompt=4096)


@pytest.mark.parametrize(
    "play",
    [
        agree.plain,
        agree.continued,
        agree.moved,
        agree.reloaded,
        lambda scene: agree.long_prefix(scene, 4096),
    ],
    ids=["plain", "continued", "moved", "reloaded", "long"],
)
def test_noted_log_probabilities_are_those_the_trainer_computes(scene, play):
    difference = play(scene).abs()

    assert difference.max() < 0.1
    assert difference.mean() < 0.01


def test_cuda_decodes_by_graphs():
    loop = EngineCore(network(), EngineConfig(kv_tokens=4096), model="small")

    assert isinstance(loop._forward, GraphForward)


def claim(seed, size):
    ids = np.random.default_rng(seed).integers(0, 2048, size, dtype=np.int32)
    pack = Pack(
        ids=ids,
        positions=np.arange(size, dtype=np.int32),
        tout=np.full(size, size, np.int32),
        predictors=np.arange(size - 1, dtype=np.int32),
        labels=ids[1:],
        behaviour=np.full(size - 1, -7.7, np.float32),
        shares=np.zeros(size - 1, np.int32),
    )
    share = Share(execution=ExecutionId("e"), advantage=1.0, num_targets=size - 1)
    return Claim(shares=(share,), packs=(pack,))


def trainer(of):
    return Trainer(
        of,
        section=TrainerConfig(),
        objective=LossConfig(clip_high=100.0),
        optimizer=OptimizerConfig(),
    )


def test_gradients_on_cuda_are_those_on_a_cpu():
    here, there = trainer(network("cpu", torch.float32)), trainer(network())
    expected = here.train(claim(0, 700), num_executions=1)
    found = there.train(claim(0, 700), num_executions=1)

    assert found.loss == pytest.approx(expected.loss, rel=1e-2)
    for name, one in here.gradient_views.items():
        two = there.gradient_views[name].cpu()
        assert ((one - two).norm() / one.norm()).item() < 0.08, name


def test_a_bushy_tree_on_cuda_gives_the_gradients_of_a_cpu():
    """A prefix of 512 tokens and forty branches of ten."""
    rng = np.random.default_rng(2)
    num, branches, size = 512, 40, 10
    total = num + branches * size
    ends = num + size * (1 + np.repeat(np.arange(branches), size))
    inside = np.tile(np.arange(size), branches)
    first = np.repeat(num + size * np.arange(branches), size)
    predictors = np.where(inside == 0, num - 1, first + inside - 1)
    ids = rng.integers(0, 2048, total, dtype=np.int32)
    pack = Pack(
        ids=ids,
        positions=np.concatenate([np.arange(num), num + inside]).astype(np.int32),
        tout=np.concatenate([np.full(num, total), ends]).astype(np.int32),
        predictors=predictors.astype(np.int32),
        labels=ids[num:],
        behaviour=np.full(branches * size, -7.7, np.float32),
        shares=np.zeros(branches * size, np.int32),
    )
    share = Share(execution=ExecutionId("e"), advantage=1.0, num_targets=branches * size)
    bushy = Claim(shares=(share,), packs=(pack,))
    here, there = trainer(network("cpu", torch.float32)), trainer(network())
    here.train(bushy, num_executions=1)
    there.train(bushy, num_executions=1)

    for name, one in here.gradient_views.items():
        two = there.gradient_views[name].cpu()
        assert ((one - two).norm() / one.norm()).item() < 0.08, name


def test_a_cell_gives_its_memory_to_the_other_role_and_takes_it_back():
    of = network()
    trains = trainer(of)
    trains.train(claim(1, 600), num_executions=1)
    trains.step()
    before = {name: one.clone() for name, one in trains.export().tensors.items()}
    trains.offload()
    low = torch.cuda.memory_allocated()
    loop = EngineCore(of, EngineConfig(kv_tokens=262_144), model="small")
    serving = torch.cuda.memory_allocated()
    loop.offload()
    rested = torch.cuda.memory_allocated()
    trains.reload()

    assert serving - low >= 262_144 * of.shape.kv_values_per_token * 2
    assert rested - low < 2**20
    assert all(bool((before[name] == one).all()) for name, one in trains.export().tensors.items())


def test_waking_without_room_is_named_and_may_be_tried_again():
    of = network()
    loop = EngineCore(of, EngineConfig(kv_tokens=2_097_152), model="small")
    loop.offload()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(int(free - 2**30), dtype=torch.int8, device="cuda")
    with pytest.raises(OutOfMemory):
        loop.wake()
    ready = loop.health().ready
    del hog
    torch.cuda.empty_cache()
    loop.wake()

    assert not ready
    assert loop.health().ready
