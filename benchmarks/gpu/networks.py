"""The models of the GPU benchmarks: random weights, bf16, the sizes of Qwen3."""

from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

SMALL: dict[str, Any] = {
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
"""The size of Qwen3-0.6B."""
LARGE = SMALL | {
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
}
"""Two thirds of the layers of Qwen3-8B, as many as leave room for packs of 65,536 tokens: in large
models matrices weigh more beside attention than in small ones."""
H200_BF16_FLOPS = 989e12
"""Dense, by the data sheet: what model FLOP utilisation is a share of."""


def qwen3(attention: str = "sdpa", size: dict[str, Any] = SMALL) -> PreTrainedModel:
    """A fresh model on the device, the same each time."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(Qwen3Config(**size)).to(torch.bfloat16)
    model.set_attn_implementation(attention)
    return model.eval()
