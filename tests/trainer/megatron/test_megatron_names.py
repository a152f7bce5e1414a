"""Weights go into Megatron's names and shapes and come back as they were, in every layout."""

import sys
from types import ModuleType

import pytest
import torch
from tests.trainer.support import cases

from gyre.config.sections import LossConfig, TrainerConfig
from gyre.trainer.distributed.rank_comm import RankPosition
from gyre.trainer.megatron.trainer import open_trainer
from gyre.trainer.megatron.weights import QKV, from_megatron, fused, parted, to_megatron
from gyre.types.errors import ConfigError, ModelError


def places(stages, shards):
    return [RankPosition.of(rank, stages=stages, shards=shards) for rank in range(stages * shards)]


def test_queries_keys_and_values_lie_group_by_group():
    """Two groups of two heads of queries, each head one row."""
    query, key, value = torch.arange(4), torch.tensor([10, 11]), torch.tensor([20, 21])
    whole = fused(QKV, [query, key, value], groups=2)

    assert [0, 1, 10, 20, 2, 3, 11, 21] == whole.tolist()
    back = parted(QKV, whole, groups=2, group_heads=2)
    assert [[0, 1, 2, 3], [10, 11], [20, 21]] == [one.tolist() for one in back]


def test_a_shard_has_its_gate_before_its_up():
    tensors = {
        f"model.layers.0.mlp.{name}.weight": torch.arange(4.0)[:, None] + first
        for name, first in (("gate_proj", 0), ("up_proj", 10))
    } | {"model.embed_tokens.weight": torch.zeros(2, 1), "model.norm.weight": torch.ones(1)}
    shape = cases.network("qwen3", num_hidden_layers=1).shape
    first, second = (to_megatron(tensors, shape, one) for one in places(1, 2))
    name = "decoder.layers.0.mlp.linear_fc1.weight"

    assert [0, 1, 10, 11] == first[name].flatten().tolist()
    assert [2, 3, 12, 13] == second[name].flatten().tolist()


@pytest.mark.parametrize("family", ["qwen3", "qwen3-tied", "qwen2"])
@pytest.mark.parametrize(("stages", "shards"), [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_a_round_trip_keeps_every_bit(family, stages, shards):
    network = cases.network(family, vocab_size=62)
    tensors = {name: one.detach() for name, one in network.module.named_parameters()}
    ranks = [(one, to_megatron(tensors, network.shape, one)) for one in places(stages, shards)]
    back = from_megatron(ranks, network.shape, tied="lm_head.weight" not in tensors)

    assert set(tensors) == set(back)
    assert all(torch.equal(one, back[name]) for name, one in tensors.items())


def test_a_tied_head_is_given_to_the_last_stage_alone():
    network = cases.network("qwen3-tied", vocab_size=62)
    tensors = {name: one.detach() for name, one in network.module.named_parameters()}
    alone = to_megatron(tensors, network.shape, places(1, 1)[0])
    first, last = (to_megatron(tensors, network.shape, one) for one in places(2, 1))

    assert "output_layer.weight" not in alone
    assert "output_layer.weight" not in first
    assert torch.equal(first["embedding.word_embeddings.weight"], last["output_layer.weight"])


def test_a_matrix_that_cannot_be_split_is_refused():
    network = cases.network("qwen3")
    tensors = dict(network.module.named_parameters())
    with pytest.raises(ModelError, match="64 rows or columns cannot be split over 3 ranks"):
        to_megatron(tensors, network.shape, places(1, 3)[0])


def test_without_megatron_the_hint_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "gyre.trainer.megatron.layers", raising=False)
    monkeypatch.setitem(sys.modules, "megatron", None)
    network = cases.network("qwen3")
    before = list(network.layers)
    with pytest.raises(ConfigError, match=r"pip install 'gyre-rl\[megatron\]'"):
        open_trainer(network, section=TrainerConfig(), objective=LossConfig(), optimizer=None)

    assert before == list(network.layers)


def test_another_version_of_megatron_is_named_by_what_it_lacks(monkeypatch):
    monkeypatch.delitem(sys.modules, "gyre.trainer.megatron.layers", raising=False)
    specs = "megatron.core.models.gpt.gpt_layer_specs"
    parts = specs.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    with pytest.raises(ConfigError, match="cannot import name 'get_gpt_layer_local_spec'"):
        open_trainer(
            cases.network("qwen3"),
            section=TrainerConfig(),
            objective=LossConfig(),
            optimizer=None,
        )
