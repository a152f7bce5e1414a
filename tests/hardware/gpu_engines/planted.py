"""Two sets of weights whose greedy answers are clear enough for half precision.

Random layers over a plan: each token has one that follows it, which the head favours by several
nats. Sampling still strays from the plan, and what the layers add decides log-probabilities, so
that keys or outputs of the other set would show.
"""

import shutil
from pathlib import Path

import torch

from gyre.model.checkpoint import save
from gyre.model.hf_config import describe
from gyre.model.loader import new_network
from gyre.model.network import Network
from gyre.model.registry import model_folder

SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 784,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "eos_token_id": 777,
}
"""Heads as those of Qwen3, so that its kernels are used; the tokens are those of `tiny`."""
SPREAD = 2.5
"""How much larger the layers' weights are than at the start of a training."""
LEAD = 0.045
NOISE = 0.03
"""Of the head: the part of a token's row that knows which token it follows, and the rest."""
SEEDS = {"first": 1, "second": 2}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def planted(seed: int) -> Network:
    """Every number of it is one that bfloat16 has."""
    network = new_network(describe(SHAPE, where="test"), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, one in network.module.named_parameters():
            if ".layers." in name and one.dim() > 1:
                one.mul_(SPREAD)
        tokens = network.module.get_input_embeddings().weight.normal_(generator=generator)
        head = network.module.get_output_embeddings().weight
        head.normal_(0.0, NOISE, generator=generator)
        plan = torch.randperm(len(head), generator=generator)
        head[plan.roll(-1)] += LEAD * tokens[plan]
    network.module.to(torch.bfloat16)
    return network


def write_weights(place: Path) -> None:
    """Both sets as checkpoints of ours, with a tokenizer."""
    files = place / "files"
    files.mkdir(parents=True)
    for name in TOKENIZER:
        shutil.copy(model_folder("tiny") / name, files / name)
    for version, (name, seed) in enumerate(SEEDS.items(), start=1):
        network = planted(seed)
        network.module.name_or_path = str(files)
        save(network, place / name, version=version)
