"""Log-probabilities noted while sampling are those a trainer computes for the same tokens."""

import pytest
import torch
from benchmarks.gpu import agree
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gyre.model.network import Network

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SCENES = {
    "plain": agree.plain,
    "continued": agree.continued,
    "moved": agree.moved,
    "reloaded": agree.reloaded,
    "long": lambda scene: agree.long_prefix(scene, 1600),
}
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


@pytest.fixture(scope="module", params=FAMILIES)
def networks(request):
    config, model = FAMILIES[request.param]
    made = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        made[dtype] = Network(model(config(**SIZES)).to(dtype).eval())
    return made


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)], ids=["float32", "bf16"]
)
def test_engine_and_trainer_agree(networks, scene, dtype, most):
    played = agree.Scene(networks[dtype], num_calls=3, num_prompt=1600)
    difference = SCENES[scene](played)

    assert 3 * agree.NUM_OUTPUT == len(difference)
    assert difference.abs().max() < most
