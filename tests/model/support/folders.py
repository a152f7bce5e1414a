"""Model folders to damage, and small networks of every architecture."""

import json
import shutil

import torch

from gyre.model.checkpoint import save
from gyre.model.hf_config import describe
from gyre.model.loader import new_network
from gyre.model.registry import model_folder

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small(model_type="llama", *, seed=0, dtype=torch.float32, **changes):
    """A network with random weights."""
    config = SMALL | {"model_type": model_type} | changes
    return new_network(describe(config, where="test"), seed=seed, dtype=dtype)


def saved(folder, *, shard_bytes=2**30, **how):
    """A small network's folder, without what only our own folders have."""
    network = small(**how)
    save(network, folder, version=0, shard_bytes=shard_bytes)
    (folder / "gyre.json").unlink()
    return network


def copied(folder):
    """`tiny`, to be changed, without what tells that it was."""
    shutil.copytree(model_folder("tiny"), folder)
    (folder / "gyre.json").unlink()
    return folder


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: one for name, one in config.items() if one is not ABSENT}))


ABSENT = object()


def weights_of(network):
    return {name: one.detach().clone() for name, one in network.module.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
