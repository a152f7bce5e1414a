"""Which networks can be split over ranks; that the split ones are right is in test_pipeline."""

import pytest
import torch
from tests.trainer.support import cases
from tests.trainer.support.cells import worst

from gyre.trainer.distributed.rank_comm import CommGroup
from gyre.trainer.distributed.tensor_parallel import UNSPLIT, split_network
from gyre.types.errors import ModelError


class _Alone(CommGroup):
    """A line on which nobody else is."""

    def __init__(self):
        super().__init__("a line of one", lambda: None, depth=1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_key_value_heads": 1}, "1 key-value heads cannot be split over 2 ranks"),
        ({"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3}, "3 attention"),
        ({"intermediate_size": 33}, "33 MLP columns cannot be split over 2 ranks"),
    ],
)
def test_a_model_that_cannot_be_split_evenly_is_refused_and_left_whole(changes, complaint):
    network = cases.network("llama", **changes)
    before = {name: one.clone() for name, one in network.module.named_parameters()}
    with pytest.raises(ModelError, match=complaint):
        split_network(network, _Alone(), shard=0, shards=2)

    assert 0.0 == worst(before, dict(network.module.named_parameters()))


def test_a_layer_with_an_unknown_part_is_refused_and_left_whole():
    network = cases.network("llama")
    network.layers[1].self_attn.sinks = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"model.layers.1: .* self_attn.sinks"):
        split_network(network, _Alone(), shard=0, shards=2)

    assert (32, 32) == tuple(network.layers[0].self_attn.q_proj.weight.shape)


def test_a_norm_over_all_heads_is_refused():
    network = cases.network("qwen3")
    network.layers[0].self_attn.q_norm = torch.nn.RMSNorm(64)
    with pytest.raises(ModelError, match="spans 64 values, more than one head"):
        split_network(network, _Alone(), shard=0, shards=2)


def test_one_shard_is_the_whole_network():
    network = cases.network("qwen2")

    assert UNSPLIT is split_network(network, _Alone(), shard=0, shards=1)
    assert (32, 32) == tuple(network.layers[0].self_attn.q_proj.weight.shape)
