"""The model of the GPU benchmarks: the size of Qwen3-0.6B, random weights, bf16."""

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

CONFIG = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
H200_BF16_FLOPS = 989e12
"""Dense, by the data sheet: what model FLOP utilisation is a share of."""


def qwen3(attention: str = "sdpa") -> PreTrainedModel:
    """A fresh model on the device, the same each time."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).to(torch.bfloat16)
    model.set_attn_implementation(attention)
    return model.eval()
