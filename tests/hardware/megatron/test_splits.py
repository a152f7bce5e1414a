"""How far Megatron splits a layer's experts and a text's tokens without Transformer Engine."""

import pytest
import torch
from safetensors.torch import load_file
from tests.hardware.megatron.ranks import run_ranks
from tests.hardware.megatron.split_rank import ANGLES, RANKS, TOKENS, block, names_of, texts
from tests.trainer.support.cells import distance

from gyre.trainer.distributed.rank_comm import RankPosition

# Megatron tells of everything that it falls back from, as it is imported.
pytestmark = [pytest.mark.megatron, pytest.mark.filterwarnings("ignore")]
LIMIT = 1e-6
"""Shares of experts are computed in float32 on both sides, whatever the width of the model."""


def said(folder, kind):
    """By both ranks."""
    run_ranks("tests.hardware.megatron.split_rank", RANKS, folder, kind)
    return [load_file(folder / f"{kind}-{rank}.safetensors") for rank in range(RANKS)]


def test_experts_on_two_ranks_give_the_results_and_gradients_of_all_on_one(tmp_path):
    """An expert sees tokens of both ranks; what chooses among them is on both, and sees its own."""
    found = said(tmp_path, "experts")
    plain = block()
    given, gradient = texts()
    expected = plain(given)
    expected.backward(gradient)
    gradients = {name: one.grad for name, one in plain.named_parameters()}

    for rank, one in enumerate(found):
        assert LIMIT > distance(expected[rank].detach(), one["found"])
        for name, (ours, expert) in names_of(rank).items():
            if expert is not None:
                assert LIMIT > distance(gradients[ours][expert], one[name])
                assert one[name].any()
    chosen = sum(one["router.weight"] for one in found)
    assert LIMIT > distance(gradients["gate.weight"], chosen)


def test_tokens_of_a_text_are_dealt_out_so_that_each_rank_sees_as_much(tmp_path):
    first, second = said(tmp_path, "contexts")
    part = TOKENS // 4

    assert [*range(part), *range(3 * part, 4 * part)] == first["positions"].tolist()
    assert [*range(part, 3 * part)] == second["positions"].tolist()
    assert first["positions"].sum() == second["positions"].sum()
    for one in (first, second):
        assert torch.equal(one["angles"][:, 0, 0, 0], one["positions"].double() * ANGLES)


def test_attention_over_tokens_of_several_ranks_needs_transformer_engine():
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, context_parallel_size=RANKS
    )
    with pytest.raises(AssertionError, match="only supported by TEDotProductAttention"):
        DotProductAttention(config, 1, AttnMaskType.causal, "self")


@pytest.mark.parametrize(("stages", "shards"), [(1, 4), (4, 1), (2, 2), (3, 2), (2, 4)])
def test_ranks_of_a_cell_stand_where_megatrons_do(stages, shards):
    from megatron.core.parallel_state import RankGenerator

    order = RankGenerator(tp=shards, pp=stages, cp=1, ep=1, dp=1, order="tp-cp-ep-dp-pp")
    places = [
        RankPosition.of(rank, stages=stages, shards=shards) for rank in range(stages * shards)
    ]

    assert order.get_ranks("tp") == [
        [one.rank for one in places if one.stage == stage] for stage in range(stages)
    ]
    assert order.get_ranks("pp") == [
        [one.rank for one in places if one.shard == shard] for shard in range(shards)
    ]


def test_experts_share_the_ranks_of_their_stage_and_add_none():
    """As a layout counts them: stages of two shards and two contexts, each expert's share once."""
    from megatron.core.parallel_state import RankGenerator

    stages, shards, contexts, experts = 2, 2, 2, 4
    common = {"pp": stages, "dp": 1, "order": "tp-cp-ep-dp-pp"}
    dense = RankGenerator(tp=shards, cp=contexts, ep=1, **common)
    sparse = RankGenerator(tp=1, cp=1, ep=experts, **common)

    assert stages * shards * contexts == dense.world_size == sparse.world_size
    assert dense.get_ranks("tp-cp") == sparse.get_ranks("ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
