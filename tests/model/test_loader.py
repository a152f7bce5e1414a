"""Networks from names and folders, compared with transformers; and folders that are refused."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.support.folders import (
    ABSENT,
    change_config,
    copied,
    same,
    saved,
    small,
    weights_of,
)
from torch.nn import functional
from transformers import AutoModelForCausalLM

from gyre.model.loader import load_network
from gyre.types.errors import ModelError


def causal(layer, query, key, value, scale):
    group = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(group, dim=1) for one in (key, value))
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return out.transpose(1, 2)


def logits(network, ids):
    with torch.no_grad():
        return network.hidden(ids, torch.arange(len(ids)), causal) @ network.head.T


def test_tiny_has_a_few_hundred_thousand_parameters():
    shape = load_network("tiny").shape

    assert 200_000 < shape.parameters < 500_000
    assert shape.context >= 2048


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_folder_gives_the_logits_that_transformers_gives(tmp_path, kind, tied):
    folder = tmp_path / "model"
    saved(folder, model_type=kind, tie_word_embeddings=tied, head_dim=8)
    ids = torch.randint(96, (20,), generator=torch.Generator().manual_seed(1))
    other = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with torch.no_grad():
        expected = other(ids[None]).logits[0]

    assert (expected - logits(load_network(folder), ids)).abs().max() < 1e-5


ROPES = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_stretched_positions_are_those_of_transformers(tmp_path, kind):
    folder = tmp_path / "model"
    saved(folder, rope_parameters={"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]})
    ids = torch.randint(96, (100,), generator=torch.Generator().manual_seed(1))
    other = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with torch.no_grad():
        expected = other(ids[None]).logits[0]

    assert (expected - logits(load_network(folder), ids)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_come_in_the_type_asked_for_and_angles_stay_exact(dtype):
    network = load_network("tiny", dtype=dtype)

    assert {dtype} == {one.dtype for one in network.module.parameters()}
    assert {torch.float32} == {one.dtype for one in network.module.buffers()}
    assert network.head is network.decoder.embed_tokens.weight


def test_several_files_are_one_model(tmp_path):
    folder = tmp_path / "model"
    network = saved(folder, shard_bytes=4000)
    files = sorted(path.name for path in folder.glob("*.safetensors"))

    assert len(files) > 3
    assert f"model-00001-of-{len(files):05d}.safetensors" == files[0]
    assert same(weights_of(network), weights_of(load_network(folder)))


def test_a_seed_gives_a_network():
    assert same(weights_of(small(seed=3)), weights_of(small(seed=3)))
    assert not same(weights_of(small(seed=3)), weights_of(small(seed=4)))


def no_config(folder):
    (folder / "config.json").unlink()


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_early(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5])


def garbage(folder):
    (folder / "model.safetensors").write_bytes(b"\x80garbage" * 100)


def without_a_tensor(folder):
    change_tensors(folder, lambda held: held.pop("model.norm.weight"))


def with_a_tensor_more(folder):
    change_tensors(folder, lambda held: held.update(spare=torch.ones(3)))


def of_another_shape(folder):
    change_tensors(folder, lambda held: held.update({"model.norm.weight": torch.ones(7)}))


def not_finite(folder):
    change_tensors(folder, lambda held: held["model.norm.weight"].fill_(float("nan")))


def of_whole_numbers(folder):
    zeros = torch.zeros(96, dtype=torch.int64)
    change_tensors(folder, lambda held: held.update({"model.norm.weight": zeros}))


def larger_config(folder):
    change_config(folder, hidden_size=9600, head_dim=16)


def other_kind(folder):
    change_config(folder, model_type="mistral", architectures=["MistralForCausalLM"])


def without_sizes(folder):
    change_config(folder, hidden_size=ABSENT)


def index_of_nothing(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')


def index_of_a_missing_file(folder):
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def index_of_a_missing_tensor(folder):
    index = {"weight_map": {"nothing": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def change_tensors(folder, change):
    held = load_file(folder / "model.safetensors")
    change(held)
    save_file(held, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (no_config, "config.json: expected the model's configuration, found no such file"),
        (no_weights, "model.safetensors: expected the weights, found no such file"),
        (cut, "model.safetensors: expected a whole safetensors file"),
        (cut_early, "model.safetensors: expected a whole safetensors file"),
        (garbage, "model.safetensors: expected a whole safetensors file"),
        (without_a_tensor, "model.norm.weight: expected a tensor of shape (96,), found none"),
        (with_a_tensor_more, "spare: expected no such tensor, found shape (3,)"),
        (of_another_shape, "model.norm.weight: expected shape (96,), found (7,)"),
        (not_finite, "model.norm.weight: expected finite numbers, found others"),
        (of_whole_numbers, "model.norm.weight: expected floating point numbers"),
        (larger_config, "expected shape"),
        (other_kind, "model_type: expected one of llama, qwen2, qwen3"),
        (without_sizes, "hidden_size: expected a positive whole number, found None"),
        (index_of_nothing, "expected an object with weight_map"),
        (index_of_a_missing_file, "other.safetensors: expected a whole safetensors file"),
        (index_of_a_missing_tensor, "nothing: in the index, not in the file"),
    ],
)
def test_a_damaged_folder_is_refused_with_place_and_reason(tmp_path, damage, reason):
    folder = copied(tmp_path / "model")
    damage(folder)

    with pytest.raises(ModelError) as refused:
        load_network(folder)
    assert reason in str(refused.value)
    assert str(folder) in str(refused.value)


def test_an_unknown_name_is_refused():
    with pytest.raises(ModelError, match="no-such-model: expected tiny, smollm2 or a folder"):
        load_network("no-such-model")


@pytest.mark.slow
def test_loading_says_nothing_warns_of_nothing_and_asks_no_network():
    """Sockets are forbidden to the process, and warnings are errors."""
    code = """
import socket
def refuse(*_, **__): raise AssertionError("a socket")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from gyre.model.loader import load_network
load_network("tiny")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
