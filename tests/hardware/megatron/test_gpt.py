"""A whole GPTModel of Megatron's, filled by our mapping, says what transformers says."""

import pytest
import torch
from safetensors.torch import load_file
from tests.hardware.megatron.gpt_rank import IDS, plain
from tests.hardware.megatron.ranks import run_ranks

from gyre.model.network import Network
from gyre.trainer.distributed.rank_comm import RankPosition
from gyre.trainer.megatron.weights import from_megatron

pytestmark = pytest.mark.megatron


@pytest.fixture(scope="module", params=["1x1", "2x1", "1x2", "2x2"])
def layout(request):
    return request.param


@pytest.fixture(scope="module", params=["tied", "untied"])
def kind(request):
    return request.param


def run_gpt(made, layout, kind, device):
    stages, shards = map(int, layout.split("x"))
    run_ranks("tests.hardware.megatron.gpt_rank", stages * shards, made, layout, kind, device)


def apart(made, kind):
    """By how much logits differ from those of transformers, relative to the largest."""
    with torch.no_grad():
        expected = plain(kind == "tied")(input_ids=IDS).logits[0]
    found = load_file(made / "logits.safetensors")["logits"]
    assert expected.abs().max() > 1.0
    return ((expected - found).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, layout, kind):
    made = tmp_path_factory.mktemp("gpt")
    run_gpt(made, layout, kind, "cpu")
    return made


def test_logits_are_those_of_transformers(folder, kind):
    assert 1e-6 > apart(folder, kind)


def test_what_ranks_hold_becomes_the_model_again_bit_by_bit(folder, layout, kind):
    stages, shards = map(int, layout.split("x"))
    module = plain(kind == "tied")
    expected = dict(module.named_parameters())
    ranks = [
        (
            RankPosition.of(rank, stages=stages, shards=shards),
            load_file(folder / f"held-{rank}.safetensors"),
        )
        for rank in range(stages * shards)
    ]
    found = from_megatron(ranks, Network(module).shape, tied=kind == "tied")

    assert set(expected) == set(found)
    assert all(torch.equal(one, found[name]) for name, one in expected.items())
