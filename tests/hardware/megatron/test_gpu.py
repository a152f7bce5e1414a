"""On CUDA Megatron computes what transformers does: its layers in our trainer, and a GPTModel."""

import numpy as np
import pytest
import torch
from tests.hardware.megatron.test_gpt import apart, run_gpt
from tests.trainer.support.cells import worst
from transformers import Qwen3Config, Qwen3ForCausalLM

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.megatron.trainer import open_trainer
from gyre.trainer.trainer import Trainer
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Share

pytestmark = [pytest.mark.megatron, pytest.mark.gpu, pytest.mark.filterwarnings("default")]
ROW, BRANCHES, BRANCH = 1024, 3, 512


def network(dtype):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return Network(Qwen3ForCausalLM(config).to("cuda", dtype).eval())


def a_pack(tout, share, rng):
    """Every token but the last of a path is followed by one that was sampled."""
    count = len(tout)
    index = np.arange(count)
    seen = (index[:, None] < tout) & (index <= index[:, None])
    return Pack(
        ids=rng.integers(0, 2048, count, dtype=np.int32),
        positions=(seen.sum(1) - 1).astype(np.int32),
        tout=tout.astype(np.int32),
        predictors=index.astype(np.int32),
        labels=rng.integers(0, 2048, count, dtype=np.int32),
        behaviour=np.full(count, -7.6, np.float32),
        shares=np.full(count, share, np.int32),
    )


def a_claim():
    """A row, and a tree of a prefix with branches."""
    rng = np.random.default_rng(1)
    whole = ROW + BRANCHES * BRANCH
    tree = np.full(whole, whole)
    for branch in range(BRANCHES):
        begin = ROW + branch * BRANCH
        tree[begin : begin + BRANCH] = begin + BRANCH
    packs = (a_pack(np.full(ROW, ROW), 0, rng), a_pack(tree, 1, rng))
    shares = tuple(
        Share(execution=ExecutionId(f"e{at}"), advantage=advantage, num_targets=one.num_targets)
        for at, (one, advantage) in enumerate(zip(packs, (1.0, -0.5), strict=True))
    )
    return Claim(shares=shares, packs=packs)


def trained(make, dtype):
    trainer = make(
        network(dtype),
        section=TrainerConfig(),
        # Wide, so that every target gives a gradient.
        objective=LossConfig(clip_low=1e-6, clip_high=1e6),
        optimizer=OptimizerConfig(lr=1e-4, eps=1e-6),
    )
    claim = a_claim()
    trainer.train(claim, num_executions=2)
    trainer.clear()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    report = trainer.train(claim, num_executions=2)
    end.record()
    torch.cuda.synchronize()
    gradients = {name: one.clone() for name, one in trainer.gradient_views.items()}
    trainer.step()
    weights = {
        name: one.detach().clone() for name, one in trainer.network.module.named_parameters()
    }
    return report.loss, gradients, weights, begin.elapsed_time(end)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-3), (torch.bfloat16, 1e-1)])
def test_gradients_and_a_step_are_those_of_the_torch_trainer(dtype, limit, note):
    """Limits allow for sums in another order and, where products are narrow, for their width."""
    loss, gradients, weights, spent_ms = trained(open_trainer, dtype)
    their_loss, their_gradients, their_weights, their_ms = trained(Trainer, dtype)
    note[str(dtype).removeprefix("torch.")] = {
        "gradients_differ": worst(their_gradients, gradients),
        "weights_differ": worst(their_weights, weights),
        "claim_ms": {"megatron": round(spent_ms, 1), "torch": round(their_ms, 1)},
    }

    assert pytest.approx(their_loss, rel=limit) == loss
    assert limit > worst(their_gradients, gradients)
    assert limit > worst(their_weights, weights)


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_a_gptmodel_filled_by_the_mapping_says_what_transformers_says(kind, tmp_path, note):
    """As Megatron is, without what tests on a CPU need; transformers computes on the CPU."""
    run_gpt(tmp_path, "1x1", kind, "cuda")
    note[f"{kind}_logits_differ"] = apart(tmp_path, kind)

    assert 1e-5 > apart(tmp_path, kind)
