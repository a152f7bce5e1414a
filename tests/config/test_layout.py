"""Cells that do not fit their model or their machines are told so, with what would fit."""

from dataclasses import replace

import pytest
from tests.config.support.tables import read

from gyre.config.validation import Sizes, misfits, untrained, unweighable

SIZES = Sizes(layers=12, heads=8, kv_heads=4, columns=96, context_tokens=4096)
WITH_EXPERTS = replace(SIZES, experts=12)


def found(*overrides, devices=0, sizes=SIZES):
    return list(misfits(read(*overrides).config, sizes, devices=devices))


@pytest.mark.parametrize(
    ("stages", "shards", "devices"), [(1, 1, 0), (12, 4, 0), (3, 2, 0), (2, 4, 8), (1, 1, 1)]
)
def test_cells_that_fit_have_no_mistake(stages, shards, devices):
    assert [] == found(f"cells.stages={stages}", f"cells.shards={shards}", devices=devices)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "cells.stages=13",
            "cells.stages: expected at most the model's 12 layers, found 13; nearest: 12",
        ),
        (
            "cells.shards=3",
            "cells.shards: expected a divisor of the model's 8 attention heads, 4 key-value heads "
            "and 96 MLP columns, found 3; nearest: 2",
        ),
        (
            "cells.shards=8",
            "cells.shards: expected a divisor of the model's 8 attention heads, 4 key-value heads "
            "and 96 MLP columns, found 8; nearest: 4",
        ),
        (
            "cells.experts=2",
            "cells.experts: expected a divisor of the ranks of a stage, 1, and of the experts of a "
            "model that has no experts, found 2; nearest: 1",
        ),
        (
            "cells.contexts=3",
            "cells.contexts: expected two equal parts of the model's 4096 tokens for each, found "
            "3; nearest: 2",
        ),
        (
            "cluster.cell_nodes=2",
            'cluster.cell_nodes: expected 1 where cluster.kind is "local", found 2; nearest: 1',
        ),
        (
            "transport.kind=cuda",
            'transport.kind: expected cells on CUDA devices for "cuda", found model.device = '
            '"auto" and 0 CUDA devices; nearest: "shared"',
        ),
        (
            "model.device=cuda",
            "model.device: expected cpu, found 'cuda' and no CUDA device; nearest: 'cpu'",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_path_and_the_nearest(override, line):
    assert [line] == found(override)


def test_every_mistake_is_told_at_once():
    paths = [
        one.partition(":")[0]
        for one in found("cells.stages=99", "cells.shards=5", "cells.experts=3")
    ]

    assert ["cells.stages", "cells.shards", "cells.experts"] == paths


@pytest.mark.parametrize(("shards", "contexts", "experts"), [(4, 1, 4), (2, 2, 4), (1, 2, 2)])
def test_experts_are_dealt_out_to_the_ranks_of_a_stage(shards, contexts, experts):
    cell = (f"cells.shards={shards}", f"cells.contexts={contexts}", f"cells.experts={experts}")

    assert [] == found(*cell, sizes=WITH_EXPERTS)


@pytest.mark.parametrize(("experts", "nearest"), [(3, 2), (8, 4)])
def test_experts_that_cannot_be_dealt_out_evenly_are_refused(experts, nearest):
    """Of twelve, to four ranks."""
    cell = ("cells.shards=2", "cells.contexts=2", f"cells.experts={experts}")
    (line,) = found(*cell, sizes=WITH_EXPERTS)

    assert line.endswith(f"has 12 experts, found {experts}; nearest: {nearest}")


@pytest.mark.parametrize("kind", ["torch", "megatron"])
def test_what_fits_and_is_not_trained_is_told_by_the_kind_of_trainer(kind):
    cell = ("cells.contexts=2", "cells.experts=2", f"trainer.kind={kind}")

    assert [] == found(*cell, sizes=WITH_EXPERTS)
    assert [
        f'cells.{name}: expected 1, the one value that trainer.kind = "{kind}" trains with, found '
        "2; nearest: 1"
        for name in ("experts", "contexts")
    ] == list(untrained(read(*cell).config))


@pytest.mark.parametrize(
    "setting",
    [
        "sampling.temperature=0",
        "sampling.top_p=0.95",
        "sampling.top_k=20",
        "proxy.honour_sampling=true",
    ],
)
def test_tokens_that_are_drawn_otherwise_than_they_are_trained_are_refused(setting):
    """T28: what is recorded and what is trained are of one distribution."""
    name, _, value = setting.partition("=")
    (line,) = unweighable(read(setting).config)

    assert line.startswith(f"{name}: expected ")
    assert f"found {value}" in line
    assert [] == list(unweighable(read("sampling.temperature=0.7").config))


def test_a_trainer_in_place_of_ours_says_itself_what_it_computes():
    config = read("cells.contexts=2", "cells.trainer=gyre.testing.emulated_cell:trainer").config

    assert [] == list(untrained(config))


def test_every_rank_of_a_cell_has_a_device_of_its_own():
    (line,) = found("cells.stages=4", "cells.shards=2", devices=4)

    assert (
        "cells.stages, cells.shards and cells.contexts: expected at most 4 ranks of a cell, one "
        "for each CUDA device, found 8" == line
    )
    assert [line] == found("cells.stages=4", "cells.contexts=2", devices=4)
    assert [] == found("cells.stages=4", "cells.shards=2", "model.device=cpu", devices=4)


def test_ranks_on_a_node_of_ray_have_the_gpus_that_are_kept_there():
    ray = ("cluster.kind=ray", "cells.stages=2", "cells.shards=4", "cluster.cell_nodes=2")
    (line,) = found(*ray, "cluster.cell_gpus=2")

    assert line.startswith("cluster.cell_gpus: expected at least 4, ")
    assert [] == found(*ray, "cluster.cell_gpus=4")
    assert [] == found("cluster.kind=ray", "cluster.cell_gpus=0.25")


def test_ranks_are_dealt_out_to_nodes_evenly():
    (line,) = found("cluster.kind=ray", "cells.shards=4", "cluster.cell_nodes=3")

    assert (
        "cluster.cell_nodes: expected a divisor of the 4 ranks of a cell, which are dealt out "
        "evenly, found 3; nearest: 2" == line
    )


def test_a_device_by_its_number_is_one_that_is_there():
    assert ["model.device: expected one of 2 CUDA devices, found 'cuda:2'; nearest: 'cuda:1'"] == (
        found("model.device=cuda:2", devices=2)
    )
    assert [] == found("model.device=cuda:1", devices=2)


@pytest.mark.parametrize("tokens", [1, 7])
def test_texts_that_have_no_two_equal_parts_are_not_split(tokens):
    (line,) = found("cells.contexts=3", sizes=replace(SIZES, context_tokens=tokens))

    assert line.endswith("found 3; nearest: 1")


def lent(*overrides, devices=2):
    return found("transport.kind=cuda", *overrides, devices=devices)


def test_memory_of_devices_is_lent_within_one_machine():
    (line,) = lent("cluster.kind=ray", "cells.stages=2", "cluster.cell_nodes=2")

    assert [] == lent()
    assert (
        'transport.kind: expected "shared", "tcp" or "mooncake" where cluster.kind is "ray", '
        'found "cuda", which is for cells of one machine; nearest: "tcp"' == line
    )


@pytest.mark.parametrize(("device", "devices"), [("cpu", 2), ("cpu:0", 2), ("xpu", 2), ("cuda", 0)])
def test_memory_is_lent_by_cells_on_cuda_devices_alone(device, devices):
    line = lent(f"model.device={device}", devices=devices)[-1]

    assert [] == lent("model.device=cuda:1")
    assert (
        f'transport.kind: expected cells on CUDA devices for "cuda", found model.device = '
        f'"{device}" and {devices} CUDA devices; nearest: "shared"' == line
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("cells.standalone=[8]", "cells.standalone is not empty"),
        ("cells.stages=2", "a cell has 2 ranks"),
        ("trainer.kind=megatron", 'trainer.kind is "megatron"'),
    ],
)
def test_a_cell_whose_server_alone_has_the_device_lends_nothing_of_it(engine, override, why):
    (line,) = lent(f"cells.engine={engine}", override)

    assert (
        f'transport.kind: expected "shared", "tcp" or "mooncake" where cells.engine is "{engine}" '
        f'and {why}, found "cuda", which is for cells whose own weights are on a CUDA device; '
        'nearest: "shared"' == line
    )
    assert [] == lent(f"cells.engine={engine}")
    assert [] == lent(override)
