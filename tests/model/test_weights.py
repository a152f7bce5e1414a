"""Weights put into a network whole or not at all, and digests that tell networks apart."""

import pytest
import torch
from tests.model.support.folders import same, small, weights_of

from gyre.model.checkpoint import save
from gyre.model.weights import digest, load_into
from gyre.types.errors import ModelError


def test_a_network_takes_the_weights_of_tensors_and_of_a_folder(tmp_path):
    other = small(seed=1)
    save(other, tmp_path / "one", version=1)
    by_tensors, by_folder = small(), small()
    load_into(by_tensors, weights_of(other))
    load_into(by_folder, tmp_path / "one")

    assert same(weights_of(other), weights_of(by_tensors))
    assert same(weights_of(other), weights_of(by_folder))


def test_parameters_stay_where_they_are_so_that_optimizers_and_graphs_keep_them():
    network = small()
    before = [(id(one), one.data_ptr()) for one in network.module.parameters()]
    load_into(network, weights_of(small(seed=1)))

    assert before == [(id(one), one.data_ptr()) for one in network.module.parameters()]
    assert all(one.requires_grad and one.grad is None for one in network.module.parameters())


def test_wider_weights_are_rounded_to_the_networks_type():
    wide, narrow = small(seed=1), small(dtype=torch.bfloat16)
    load_into(narrow, weights_of(wide))
    rounded = {name: one.to(torch.bfloat16) for name, one in weights_of(wide).items()}

    assert same(rounded, weights_of(narrow))


def test_a_tied_head_that_is_stored_as_well_is_left_out():
    network, other = small(tie_word_embeddings=True), small(tie_word_embeddings=True, seed=1)
    held = weights_of(other)
    load_into(network, held | {"lm_head.weight": held["model.embed_tokens.weight"]})

    assert same(held, weights_of(network))


LAST = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({LAST: None}, "model.norm.weight: expected a tensor of shape (32,), found none"),
        ({LAST: torch.ones(31)}, "model.norm.weight: expected shape (32,), found (31,)"),
        ({"more": torch.ones(2)}, "more: expected no such tensor"),
        ({LAST: torch.full((32,), float("inf"))}, "model.norm.weight: expected finite numbers"),
        ({LAST: torch.full((32,), float("nan"))}, "model.norm.weight: expected finite numbers"),
        ({LAST: torch.full((32,), 1e30)}, "model.norm.weight: expected finite numbers"),
        ({LAST: torch.ones(32, dtype=torch.int32)}, "expected floating point numbers"),
    ],
    ids=["missing", "shape", "more", "inf", "nan", "too large for the type", "whole numbers"],
)
def test_wrong_weights_leave_the_network_as_it_was(change, reason):
    network = small(dtype=torch.float16)
    before = weights_of(network)
    held = weights_of(small(seed=1)) | change

    with pytest.raises(ModelError) as refused:
        load_into(network, {name: one for name, one in held.items() if one is not None})
    assert reason in str(refused.value)
    assert same(before, weights_of(network))


def test_a_damaged_checkpoint_leaves_the_network_as_it_was(tmp_path):
    save(small(seed=1), tmp_path / "one", version=1, shard_bytes=4000)
    path = sorted((tmp_path / "one").glob("*.safetensors"))[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    network = small()
    before = weights_of(network)

    with pytest.raises(ModelError, match=rf"{path.name}: expected .* bytes with hash"):
        load_into(network, tmp_path / "one")
    assert same(before, weights_of(network))


def test_equal_weights_have_equal_digests_and_any_change_is_seen():
    network, twin = small(), small()
    with torch.no_grad():
        twin.module.model.norm.weight[3] += 1e-7

    assert digest(network) == digest(small())
    assert digest(network) != digest(twin)
    assert digest(network) != digest(small(dtype=torch.bfloat16))
    assert 32 == len(digest(network))


def test_the_digest_in_a_type_is_that_of_a_network_in_the_type():
    wide, narrow = small(), small(dtype=torch.bfloat16)
    load_into(narrow, weights_of(wide))

    assert digest(narrow) == digest(wide, dtype=torch.bfloat16)


def test_the_digest_does_not_depend_on_how_a_tensor_lies():
    network, turned = small(), small()
    with torch.no_grad():
        for one in turned.module.parameters():
            if one.dim() == 2:
                one.data = one.data.t().contiguous().t()

    assert digest(network) == digest(turned)
