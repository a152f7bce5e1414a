"""A rank's tensors are parts of a model's, and are put together for whoever is cut otherwise."""

import pytest
import torch

from gyre.cell.weight_sync import (
    LANES,
    cuts_of,
    exposed,
    exposed_in_lanes,
    fetched,
    shapes_of,
    whole_cuts,
    withdraw,
)
from gyre.transports.shared_memory import SharedTransport
from gyre.transports.tensor_layout import TensorSlice
from gyre.types.errors import ExposureGone, ModelError, TransferError

WHOLE = {"model.embed_tokens.weight": (8, 4), "layer.up.weight": (6, 4), "layer.norm.weight": (4,)}
"""Of a model whose head is its embedding."""


def model(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in WHOLE.items()
    }


def test_a_shard_knows_its_parts_and_what_it_has_in_full():
    cuts = cuts_of({"layer.up.weight": (3, 4), "layer.norm.weight": (4,)}, WHOLE, shard=1)

    assert {
        "layer.up.weight": (
            "layer.up.weight",
            TensorSlice(whole=(6, 4), start=(3, 0), shape=(3, 4)),
        ),
        "layer.norm.weight": ("layer.norm.weight", TensorSlice.all_of((4,))),
    } == cuts


def test_the_last_stage_has_the_embedding_as_its_head():
    cuts = cuts_of({"lm_head.weight": (8, 4)}, WHOLE, shard=0)

    assert {"lm_head.weight": ("model.embed_tokens.weight", TensorSlice.all_of((8, 4)))} == cuts


@pytest.mark.parametrize("own", [{"other.weight": (4,)}, {"layer.up.weight": (2, 2)}])
def test_a_tensor_that_is_no_part_of_the_model_is_refused(own):
    with pytest.raises(ModelError, match="expected part 0 of a tensor"):
        cuts_of(own, WHOLE, shard=0)


def test_two_stages_of_two_shards_become_a_whole_model_and_four_shards(tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    whole = model()
    given = []
    for shard in range(2):
        rows = slice(3 * shard, 3 * shard + 3)
        first = {"model.embed_tokens.weight": whole["model.embed_tokens.weight"]}
        last = {
            "layer.up.weight": whole["layer.up.weight"][rows],
            "layer.norm.weight": whole["layer.norm.weight"],
            "lm_head.weight": whole["model.embed_tokens.weight"],
        }
        for stage in (first, last):
            shapes = {name: one.shape for name, one in stage.items()}
            cuts = cuts_of(shapes, WHOLE, shard=shard)
            given.append(exposed(transport, stage, cuts, version=5))

    found = fetched(transport, given, whole_cuts(WHOLE), version=5)
    assert [] == [name for name, one in whole.items() if not torch.equal(one, found[name])]
    for shard in range(4):
        cuts = cuts_of({"layer.up.weight": (6, 1), "lm_head.weight": (2, 4)}, WHOLE, shard=shard)
        part = fetched(transport, given, cuts, version=5)
        column = whole["layer.up.weight"][:, shard : shard + 1]
        rows = whole["model.embed_tokens.weight"][2 * shard : 2 * shard + 2]

        assert torch.equal(column, part["layer.up.weight"])
        assert torch.equal(rows, part["lm_head.weight"])


def test_weights_of_another_version_or_withdrawn_are_refused(tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    cuts = whole_cuts(WHOLE)
    bundle = exposed(transport, model(), cuts, version=5)

    with pytest.raises(TransferError, match="expected version 6, found 5"):
        fetched(transport, [bundle], cuts, version=6)
    transport.withdraw(bundle.exposure)
    with pytest.raises(ExposureGone):
        fetched(transport, [bundle], cuts, version=5)


def test_the_shapes_of_a_module_are_those_of_its_parameters():
    assert {"weight": (3, 2), "bias": (3,)} == shapes_of(torch.nn.Linear(2, 3))


def large():
    """Tensors whose rows are shared out, rows that do not come out even, and some that are not."""
    generator = torch.Generator().manual_seed(7)
    shapes = {"wide": (1_021, 300), "tall": (70_000,), "few": (3, 40_000), "small": (5, 4)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} | {
        "one": torch.tensor(3.0)
    }


def test_weights_in_lanes_are_those_that_were_exposed(tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    tensors = large()
    cuts = whole_cuts({name: tuple(one.shape) for name, one in tensors.items()})

    parts = exposed_in_lanes(transport, tensors, cuts, version=3)
    found = fetched(transport, parts, cuts, version=3)

    assert LANES == len(parts)
    assert [*tensors] == [*found]
    assert all(torch.equal(tensors[name], found[name]) for name in tensors)


def test_whoever_is_cut_otherwise_reads_lanes_as_well(tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    tensors = large()
    whole = {name: tuple(one.shape) for name, one in tensors.items()}
    parts = exposed_in_lanes(transport, tensors, whole_cuts(whole), version=3)

    cuts = cuts_of({"wide": (1_021, 100), "small": (5, 4)}, whole, shard=1)
    found = fetched(transport, parts, cuts, version=3)

    assert torch.equal(tensors["wide"][:, 100:200], found["wide"])
    assert torch.equal(tensors["small"], found["small"])


def test_lanes_are_withdrawn_together(tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    tensors = large()
    cuts = whole_cuts({name: tuple(one.shape) for name, one in tensors.items()})
    parts = exposed_in_lanes(transport, tensors, cuts, version=3)

    withdraw(transport, parts)

    assert [] == [*tmp_path.iterdir()]
    with pytest.raises(ExposureGone):
        fetched(transport, parts, cuts, version=3)


def test_lanes_that_cannot_all_be_made_leave_none(tmp_path):
    transport = SharedTransport(tmp_path, owner="cell-0")
    tensors = large()
    cuts = whole_cuts({name: tuple(one.shape) for name, one in tensors.items()})
    del tensors["small"]

    with pytest.raises(KeyError, match="small"):
        exposed_in_lanes(transport, tensors, cuts, version=3)

    assert [] == [*tmp_path.iterdir()]
