"""Packs as tensors, against the definition: k is visible to q iff k <= q < tout[k]."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.model.network import ModelDims
from gyre.model.packed_batch import check, packed, segments
from gyre.types.errors import CellError
from gyre.types.training import Pack

SHAPE = ModelDims(
    layers=1,
    hidden=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    vocabulary=50,
    context=64,
    parameters=0,
    layer_parameters=0,
)


@st.composite
def forests(draw, most=24):
    """tout and positions of random trees, depth first: each token's parent is on the last path."""
    path, parents = [], []
    for token in range(draw(st.integers(1, most))):
        depth = draw(st.integers(0, len(path)))
        # Chains are likelier than forks, as in real packs.
        depth = len(path) if draw(st.booleans()) else depth
        parents.append(path[depth - 1] if depth else None)
        path = [*path[:depth], token]
    ends, depths = [token + 1 for token in range(len(parents))], []
    for token in reversed(range(len(parents))):
        if parents[token] is not None:
            ends[parents[token]] = max(ends[parents[token]], ends[token])
    for parent in parents:
        depths.append(0 if parent is None else depths[parent] + 1)
    return np.array(ends, np.int32), np.array(depths, np.int32)


def a_pack(tout, positions=None, **changes):
    count = len(tout)
    fields = {
        "ids": np.arange(count, dtype=np.int32) % 50,
        "positions": np.arange(count, dtype=np.int32) if positions is None else positions,
        "tout": np.asarray(tout, np.int32),
        "predictors": np.array([0, 0], np.int32),
        "labels": np.array([3, 4], np.int32),
        "behaviour": np.array([-1.0, -2.0], np.float32),
        "shares": np.array([0, 0], np.int32),
    }
    return Pack(**(fields | changes))


def visible(tout):
    """Pairs (query, key) by definition."""
    count = len(tout)
    return {(q, k) for q in range(count) for k in range(q + 1) if q < tout[k]}


@given(forests())
def test_segments_cover_the_pack_once_and_show_what_is_visible(forest):
    tout, positions = forest
    found = segments(tout)
    seen = set()
    for one in found:
        before = [key for begin, end in one.ancestors for key in range(begin, end)]
        assert len(before) == one.num_ancestors
        for query in range(one.begin, one.end):
            seen |= {(query, key) for key in [*before, *range(one.begin, query + 1)]}

    assert list(range(len(tout))) == [t for one in found for t in range(one.begin, one.end)]
    assert visible(tout) == seen
    assert len(seen) == a_pack(tout, positions).num_pairs


@given(forests())
def test_segments_are_as_long_as_they_go_and_ancestors_are_merged(forest):
    tout, _ = forest
    found = segments(tout)

    assert sum(tout[k] == k + 1 for k in range(len(tout))) == len(found)
    for one in found:
        bounds = [bound for interval in one.ancestors for bound in interval]
        assert sorted(set(bounds)) == bounds
        assert not bounds or bounds[-1] < one.begin


@given(forests(), st.integers(1, 16))
def test_padding_is_at_the_end_and_no_token_of_the_pack_sees_it(forest, multiple):
    tout, positions = forest
    made = packed(a_pack(tout, positions), "cpu", multiple=multiple)
    count = len(tout)

    assert 0 == made.num_tokens % multiple
    assert made.num_tokens - count == made.num_padding < multiple
    assert visible(tout) == {(q, k) for q, k in visible(made.tout) if q < count}
    assert made.num_tokens == len(made.ids) == len(made.positions)


def test_one_row_stays_one_when_padded_and_two_rows_are_not_one():
    assert packed(a_pack([5] * 5), "cpu", multiple=8).is_one_row
    assert packed(a_pack([5] * 5), "cpu").is_one_row
    assert not packed(a_pack([2, 2, 4, 4]), "cpu").is_one_row
    assert not packed(a_pack([2, 2, 4, 4]), "cpu", multiple=8).is_one_row


def test_a_pack_becomes_tensors_of_its_own():
    pack = a_pack([3, 3, 3])
    made = packed(pack, "cpu")
    made.ids.zero_()
    made.behaviour.zero_()

    assert [0, 1, 2] == pack.ids.tolist()
    assert [-1.0, -2.0] == pack.behaviour.tolist()
    assert (torch.int64, torch.int64, torch.float64) == (
        made.ids.dtype,
        made.labels.dtype,
        made.behaviour.dtype,
    )


def test_a_long_pack_is_cut_into_segments_without_looking_at_pairs():
    prefix, branch, branches = 2**20, 2**10, 2**10
    count = prefix + branch * branches
    ends = prefix + branch * np.arange(1, branches + 1)
    tout = np.concatenate([np.full(prefix, count), ends.repeat(branch)])

    found = segments(tout)

    assert branches == len(found)
    assert {((0, prefix),)} == {one.ancestors for one in found[1:]}


@given(forests())
def test_every_well_formed_pack_is_accepted(forest):
    check(a_pack(*forest), SHAPE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ids": np.array([0, 50, 1], np.int32)}, r"ids\[1\] is 50, and the vocabulary has 50"),
        ({"labels": np.array([1, -1], np.int32)}, r"labels\[1\] is -1"),
        ({"predictors": np.array([3, 0], np.int32)}, r"predictors\[0\] is 3"),
        ({"positions": np.array([0, 1, 64], np.int32)}, r"the model's context is 64"),
        ({"positions": np.array([0, 1, 3], np.int32)}, r"its path makes it 2"),
        ({"positions": np.array([0, 1], np.int32)}, r"2 positions where 3 belong"),
        ({"behaviour": np.array([0, np.nan], np.float32)}, r"behaviour\[1\] is nan"),
        ({"shares": np.array([0], np.int32)}, r"1 shares where 2 belong"),
        ({"tout": np.array([3, 3, 4], np.int32)}, r"tout\[2\] is 4"),
        ({"tout": np.array([2, 3, 3], np.int32)}, r"tout\[1\] is 3"),
        ({"tout": np.array([3, 1, 3], np.int32)}, r"tout\[1\] is 1"),
    ],
)
def test_a_pack_the_model_cannot_compute_is_refused_by_name(changes, said):
    with pytest.raises(CellError, match=said) as error:
        check(a_pack(**({"tout": [3, 3, 3]} | changes)), SHAPE)

    assert not error.value.retryable


def test_a_subtree_that_outgrows_its_parent_is_refused():
    with pytest.raises(CellError, match=r"tout\[2\] is 4"):
        check(a_pack([3, 2, 4, 4], np.array([0, 1, 1, 2], np.int32)), SHAPE)


def test_an_empty_pack_is_refused():
    empty = np.array([], np.int32)
    with pytest.raises(CellError, match="without tokens"):
        check(a_pack([], empty, predictors=empty, labels=empty, behaviour=empty), SHAPE)
