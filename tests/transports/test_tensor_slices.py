"""Any cut of a tensor is put together from any cuts that cover it, each value once."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.transports.tensor_layout import TensorSlice, planned
from gyre.types.errors import TransferError

SHAPES = st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple)


@st.composite
def grids(draw, shape):
    """The whole in boxes: every dimension cut wherever it is cut."""
    edges = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    cuts = [
        TensorSlice(
            whole=shape,
            start=tuple(low for low, _ in box),
            shape=tuple(high - low for low, high in box),
        )
        for box in product(*(list(pairwise(one)) for one in edges))
    ]
    return draw(st.permutations(cuts))


@st.composite
def boxes(draw, shape):
    spans = [sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    return TensorSlice(
        whole=shape,
        start=tuple(low for low, _ in spans),
        shape=tuple(high - low for low, high in spans),
    )


def values(cut):
    """What a holder of this cut has of a tensor whose values are all different."""
    whole = np.arange(int(np.prod(cut.whole)), dtype=np.int64).reshape(cut.whole)
    return whole[cut.slices(TensorSlice.all_of(cut.whole))]


def put_together(wanted, held):
    made = np.full(wanted.shape, -1, np.int64)
    times = np.zeros(wanted.shape, np.int64)
    for one in planned(wanted, held, "w"):
        made[one.target] = values(held[one.holder])[one.source]
        times[one.target] += 1
    assert (times == 1).all()
    return made


@given(st.data(), SHAPES)
def test_any_box_is_made_from_any_grid_of_boxes(data, shape):
    held = dict(enumerate(data.draw(grids(shape))))
    wanted = data.draw(boxes(shape))

    assert values(wanted).tolist() == put_together(wanted, held).tolist()


@given(st.data(), SHAPES)
def test_boxes_that_overlap_are_read_where_they_are_needed(data, shape):
    held = dict(
        enumerate([*data.draw(st.lists(boxes(shape), max_size=3)), TensorSlice.all_of(shape)])
    )
    wanted = data.draw(boxes(shape))

    assert values(wanted).tolist() == put_together(wanted, held).tolist()


@given(st.data(), SHAPES.filter(bool))
def test_what_nobody_holds_is_named(data, shape):
    cuts = data.draw(grids(shape))
    missing = data.draw(st.sampled_from(cuts))
    held = {at: one for at, one in enumerate(cuts) if one is not missing}

    with pytest.raises(TransferError, match=f"w: nobody holds {missing.num_values} of"):
        planned(TensorSlice.all_of(shape), held, "w")


def test_two_shards_become_four_and_four_become_two():
    """Columns of two on one side, of four on the other."""
    two = {at: TensorSlice.part_of((8, 6), (8, 3), at) for at in range(2)}
    four = {at: TensorSlice.part_of((8, 6), (2, 6), at) for at in range(4)}

    for at in range(4):
        assert {0, 1} == {one.holder for one in planned(four[at], two, "w")}
        assert values(four[at]).tolist() == put_together(four[at], two).tolist()
    for at in range(2):
        assert {0, 1, 2, 3} == {one.holder for one in planned(two[at], four, "w")}
        assert values(two[at]).tolist() == put_together(two[at], four).tolist()


def test_what_several_hold_in_full_is_read_from_the_first():
    whole = TensorSlice.all_of((4, 4))

    assert [0] == [one.holder for one in planned(whole, {0: whole, 1: whole}, "w")]


def test_a_tensor_of_another_shape_is_refused():
    with pytest.raises(TransferError, match=r"expected a tensor of shape \(4, 4\), found \(4, 8\)"):
        planned(TensorSlice.all_of((4, 4)), {0: TensorSlice.all_of((4, 8))}, "w")


@pytest.mark.parametrize(
    ("whole", "shape", "index", "start"),
    [
        ((8, 4), (8, 4), 3, (0, 0)),
        ((8, 4), (2, 4), 3, (6, 0)),
        ((8, 4), (8, 2), 1, (0, 2)),
        ((), (), 0, ()),
    ],
)
def test_a_part_knows_where_it_begins(whole, shape, index, start):
    assert start == TensorSlice.part_of(whole, shape, index).start


@pytest.mark.parametrize(
    ("whole", "shape", "index"),
    [((8, 4), (4, 2), 0), ((8, 4), (8,), 0), ((8, 4), (4, 4), 2), ((8, 4), (0, 4), 0)],
)
def test_what_is_no_part_along_one_dimension_has_no_place(whole, shape, index):
    assert TensorSlice.part_of(whole, shape, index) is None
