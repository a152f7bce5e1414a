"""What a network of transformers may ask for, and what is refused because nobody computes it."""

import pytest
import torch
from tests.model.support.folders import small
from tests.model.test_loader import causal
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from gyre.model.network import Network
from gyre.types.errors import ModelError

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
IDS = torch.arange(5)


def windowed(network):
    network.layers[1].self_attn.sliding_window = 16


def dropping(network):
    network.layers[1].self_attn.attention_dropout = 0.1
    network.module.train()


@pytest.mark.parametrize(
    ("change", "keyword"), [(windowed, "sliding_window"), (dropping, "dropout")]
)
def test_a_keyword_that_attention_does_not_compute_is_refused(change, keyword):
    network = small("qwen2")
    before = network.hidden(IDS, IDS, causal)
    change(network)

    expected = f"layer 1, a Qwen2Attention: {keyword}: expected none"
    with pytest.raises(ModelError, match=expected):
        network.hidden(IDS, IDS, causal)
    assert (5, 32) == before.shape


@pytest.mark.parametrize(
    ("kind", "config", "found"),
    [
        (Qwen3NextForCausalLM, Qwen3NextConfig(**SIZES), r"layers\.0\.linear_attn: expected self_"),
        (
            Glm4MoeForCausalLM,
            Glm4MoeConfig(**SIZES, first_k_dense_replace=1),
            r"layers\.1\.mlp\.gate\.e_score_correction_bias: expected no buffer",
        ),
    ],
)
def test_a_layer_with_parts_that_nobody_computes_or_keeps_is_refused(kind, config, found):
    with torch.device("meta"):
        module = kind(config)

    with pytest.raises(ModelError, match=found):
        Network(module)
