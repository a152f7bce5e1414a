"""Cells that do not fit their model or their machines are told so, with what would fit."""

import pytest
from tests.config.tables import read

from gyre.config.layout import Sizes, misfits

SIZES = Sizes(layers=12, heads=8, kv_heads=4, columns=96)


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
            "cells.experts: expected a divisor of the experts of a model that has no experts, "
            "found 2; nearest: 1",
        ),
        (
            "cells.contexts=4",
            "cells.contexts: expected 1, because every rank sees whole packs, found 4; nearest: 1",
        ),
        (
            "cluster.cell_nodes=2",
            'cluster.cell_nodes: expected 1 where cluster.kind is "local", found 2; nearest: 1',
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


def test_experts_are_dealt_out_evenly():
    sizes = Sizes(layers=12, heads=8, kv_heads=4, columns=96, experts=8)

    assert [] == found("cells.experts=4", sizes=sizes)
    (line,) = found("cells.experts=5", sizes=sizes)
    assert line.endswith("has 8 experts, found 5; nearest: 4")


def test_every_rank_of_a_cell_has_a_device_of_its_own():
    (line,) = found("cells.stages=4", "cells.shards=2", devices=4)

    assert (
        "cells.stages and cells.shards: expected at most 4 ranks of a cell, one for each CUDA "
        "device, found 8" == line
    )
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
