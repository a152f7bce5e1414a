"""A whole GPTModel of Megatron's, filled by our mapping, says what transformers says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.megatron.gpt_rank import IDS, plain

from gyre.backends.trainers.megatron_names import from_megatron
from gyre.model.network import Network
from gyre.train.lines import Place

pytestmark = pytest.mark.megatron
ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0


@pytest.fixture(scope="module", params=["1x1", "2x1", "1x2", "2x2"])
def layout(request):
    return request.param


@pytest.fixture(scope="module", params=["tied", "untied"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, layout, kind):
    """What the ranks of one layout left there."""
    made = tmp_path_factory.mktemp("gpt")
    stages, shards = map(int, layout.split("x"))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.megatron.gpt_rank", str(rank), made, layout, kind],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(stages * shards)
    ]
    try:
        said = [one.communicate(timeout=LIMIT_S)[1] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert [0] * len(ranks) == [one.returncode for one in ranks], "\n".join(said)
    return made


def test_logits_are_those_of_transformers(folder, kind):
    with torch.no_grad():
        expected = plain(kind == "tied")(input_ids=IDS).logits[0]
    found = load_file(folder / "logits.safetensors")["logits"]

    assert expected.abs().max() > 1.0
    assert 1e-6 > (expected - found).abs().max() / expected.abs().max()


def test_what_ranks_hold_becomes_the_model_again_bit_by_bit(folder, layout, kind):
    stages, shards = map(int, layout.split("x"))
    module = plain(kind == "tied")
    expected = dict(module.named_parameters())
    ranks = [
        (
            Place.of(rank, stages=stages, shards=shards),
            load_file(folder / f"held-{rank}.safetensors"),
        )
        for rank in range(stages * shards)
    ]
    found = from_megatron(ranks, Network(module).shape, tied=kind == "tied")

    assert set(expected) == set(found)
    assert all(torch.equal(one, found[name]) for name, one in expected.items())
