"""A model of random weights in a folder of its own, with a tokenizer of as many entries.

    python -m benchmarks.gpu.live.model FOLDER SIZE DEVICE

The same seed makes the same weights on devices of one kind.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.live.work import CONTEXT

from gyre.model.checkpoint import save
from gyre.model.hf_config import CONFIG, read_description
from gyre.model.loader import new_network
from gyre.model.registry import model_folder

VOCABULARY = 49_152
SIZES: dict[str, dict[str, Any]] = {
    "0.12B": {
        "hidden_size": 640,
        "intermediate_size": 2560,
        "num_hidden_layers": 14,
        "num_attention_heads": 10,
        "num_key_value_heads": 5,
        "head_dim": 64,
    },
    "small": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}
"""Shapes of Qwen3 by name; the small one is for machines without a GPU."""


def made(folder: Path, size: str, *, device: str) -> Path:
    """The model's folder, made if it is not there yet."""
    if folder.exists():
        return folder
    plan = folder.with_name(f"{folder.name}.plan")
    plan.mkdir(parents=True)
    tokenizer = _tokenizer()
    for name, content in (("tokenizer.json", tokenizer), (CONFIG, _config(size, tokenizer))):
        (plan / name).write_text(json.dumps(content))
    network = new_network(read_description(plan), seed=0, device=device, dtype=torch.bfloat16)
    network.module.name_or_path = str(plan)
    save(network, folder, version=0)
    return folder


def _tokenizer() -> dict[str, Any]:
    """That of `tiny`, with words that no text becomes, so that a random draw rarely ends a reply.

    A network that knows nothing draws every id about as often as any other.
    """
    found: dict[str, Any] = json.loads((model_folder("tiny") / "tokenizer.json").read_text())
    vocabulary, added = found["model"]["vocab"], found["added_tokens"]
    first_added = VOCABULARY - len(added)
    vocabulary.update((f"Ġw{number}", number) for number in range(len(vocabulary), first_added))
    for number, one in enumerate(added, first_added):
        one["id"] = number
    return found


def _config(size: str, tokenizer: dict[str, Any]) -> dict[str, Any]:
    added = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "eos_token_id": added["<|im_end|>"],
        "pad_token_id": added["<|endoftext|>"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        **SIZES[size],
    }


if __name__ == "__main__":
    made(Path(sys.argv[1]), sys.argv[2], device=sys.argv[3])
