"""Flat tensors with a view for each parameter."""

import pytest
import torch

from gyre.trainer.gradients import Buckets
from gyre.types.errors import CellError

SHAPES = {name: torch.Size(shape) for name, shape in {"a": (2, 3), "b": (4,), "c": (9,)}.items()}


def some(bucket_values=10):
    return Buckets(
        SHAPES, dtype=torch.float32, device=torch.device("cpu"), bucket_values=bucket_values
    )


@pytest.mark.parametrize(("most", "sizes"), [(10, [10, 9]), (6, [6, 4, 9]), (100, [19])])
def test_parameters_fill_buckets_in_order_and_a_large_one_has_its_own(most, sizes):
    buckets = some(most)

    assert sizes == [flat.numel() for flat in buckets.flats]
    assert SHAPES == {name: view.shape for name, view in buckets.views.items()}


def test_a_view_is_its_part_of_the_flat_tensor():
    buckets = some()
    for number, view in enumerate(buckets.views.values(), 1):
        view.fill_(number)

    assert [[1.0] * 6 + [2.0] * 4, [3.0] * 9] == [flat.tolist() for flat in buckets.flats]
    buckets.zero()
    assert 0.0 == sum(float(view.sum()) for view in buckets.views.values())


def test_resting_keeps_values_and_forbids_their_use():
    buckets = some()
    buckets.flats[1].fill_(2.5)
    for _ in range(2):
        buckets.offload()
    assert buckets.is_resting
    with pytest.raises(CellError, match="restore"):
        _ = buckets.flats
    with pytest.raises(CellError, match="restore"):
        _ = buckets.views
    for _ in range(2):
        buckets.reload()

    assert [2.5] * 9 == buckets.views["c"].tolist()
    assert not buckets.is_resting


def test_what_rests_without_a_copy_comes_back_as_zeros():
    buckets = some()
    buckets.flats[0].fill_(1.0)
    buckets.offload(copied=False)
    buckets.reload()

    assert [0.0] * 10 == buckets.flats[0].tolist()
