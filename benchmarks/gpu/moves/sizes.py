"""The models whose cells switch and move: random weights in the shapes of three that are known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.networks import SMALL

from gyre.model.checkpoint import save
from gyre.model.hf_config import describe
from gyre.model.loader import new_network

CONTEXT = 40_960
"""Of all of them, so that prefixes of 32k fit; SmolLM2's own is 8,192."""
TINY: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}
"""For a machine without a GPU: it shows that everything runs, and no time that means anything."""
SIZES: dict[str, Mapping[str, Any]] = {
    "tiny": TINY,
    "0.13B": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
    },
    "0.6B": SMALL | {"model_type": "qwen3"},
    "1.7B": SMALL | {"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144},
}
"""By name: SmolLM2-135M's shape, Qwen3-0.6B's and Qwen3-1.7B's."""


def made(name: str, folder: Path, *, device: str) -> dict[str, int]:
    """A model of this size is in the folder; what its numbers weigh."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    network = new_network(
        describe(SIZES[name], where=name), seed=0, device=torch.device(device), dtype=dtype
    )
    save(network, folder, version=0)
    shape, width = network.shape, network.dtype.itemsize
    return {
        "parameters": shape.parameters,
        "weight_bytes": shape.parameters * width,
        "state_bytes": 3 * 4 * shape.parameters,
        "sum_bytes": 4 * shape.parameters,
        "kv_bytes_per_token": shape.kv_values_per_token * width,
        "vocabulary": shape.vocabulary,
    }
