"""Attention over packs, against a softmax under a dense mask."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.model.attention import attention_for
from gyre.model.packed_batch import packed
from gyre.types.errors import ModelError
from gyre.types.training import Pack

ROW = [7] * 7
ROWS = [3, 3, 3, 8, 8, 8, 8, 8]
TREE = [11, 11, 11, 7, 7, 6, 7, 11, 9, 11, 11]
"""A prefix of three tokens; below it a fork within a fork; two levels of ancestors."""
COMB = [13, 2, 13, 4, 13, 6, 13, 8, 13, 10, 13, 12, 13]
"""Every second token is a leaf, so that ancestors are many short intervals."""


def a_pack(tout):
    count = len(tout)
    none = np.array([], np.int32)
    return Pack(
        ids=np.zeros(count, np.int32),
        positions=np.zeros(count, np.int32),
        tout=np.array(tout, np.int32),
        predictors=none,
        labels=none,
        behaviour=none.astype(np.float32),
        shares=none,
    )


def dense(tout, query, key, value, scale):
    """Softmax over visible keys, one mask for all pairs."""
    count, group = len(tout), query.shape[1] // key.shape[1]
    index = torch.arange(count)
    mask = (index <= index[:, None]) & (index[:, None] < torch.tensor(tout))
    key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def random_inputs(count, heads=4, kv_heads=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(heads, 8), (kv_heads, 8), (kv_heads, 8)]
    return [
        torch.randn(1, number, count, size, generator=generator, dtype=torch.float64)
        for number, size in sizes
    ]


def outcome(attend, inputs, seed=1):
    """Values and gradients under a random weighting of the outputs."""
    inputs = [one.detach().clone().requires_grad_() for one in inputs]
    out = attend(*inputs)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
    out.backward(weights)
    return [out.detach(), *(one.grad for one in inputs)]


def differences(tout, inputs, dtype=torch.float64):
    attend = attention_for(packed(a_pack(tout), "cpu"), dtype)
    ours = outcome(lambda q, k, v: attend(0, q, k, v, 0.3), [one.to(dtype) for one in inputs])
    exact = outcome(lambda q, k, v: dense(tout, q, k, v, 0.3), inputs)
    return [error(one.double(), two) for one, two in zip(ours, exact, strict=True)]


def error(found, exact):
    """Relative to the largest value, where there is one: a lone token's score has no gradient."""
    largest = exact.abs().max().item()
    missed = (found - exact).abs().max().nan_to_num(nan=torch.inf).item()
    return missed / largest if largest else missed


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tout", [ROW, ROWS, TREE, COMB])
def test_values_and_gradients_are_those_of_a_dense_mask(tout, kv_heads):
    assert max(differences(tout, random_inputs(len(tout), kv_heads=kv_heads))) < 1e-12


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_smaller_types_stay_near(dtype, most):
    assert max(differences(TREE, random_inputs(len(TREE)), dtype)) < most


@given(st.lists(st.booleans(), max_size=40), st.data())
@settings(max_examples=40)
def test_any_tree_is_attended_to_as_by_a_dense_mask(continues, data):
    """L01, L07: paths see themselves and never each other."""
    path, parents = [], [None]
    path = [0]
    for token, goes_on in enumerate(continues, 1):
        depth = len(path) if goes_on else data.draw(st.integers(0, len(path)))
        parents.append(path[depth - 1] if depth else None)
        path = [*path[:depth], token]
    tout = [token + 1 for token in range(len(parents))]
    for token in reversed(range(len(parents))):
        if parents[token] is not None:
            tout[parents[token]] = max(tout[parents[token]], tout[token])

    assert max(differences(tout, random_inputs(len(tout)))) < 1e-12


def test_long_runs_and_long_ancestors_agree_too():
    """Longer than the kernels' own blocks."""
    tout = [1500] * 600 + [1000] * 400 + [1500] * 500

    assert max(differences(tout, random_inputs(1500, heads=2, kv_heads=1))) < 1e-12


def test_without_a_gradient_none_is_kept():
    attend = attention_for(packed(a_pack(TREE), "cpu"), torch.float64)
    with torch.no_grad():
        out = attend(0, *random_inputs(len(TREE)), 0.3)

    assert not out.requires_grad
    assert (1, len(TREE), 4, 8) == out.shape


def test_a_device_without_attention_is_named():
    with pytest.raises(ModelError, match="meta"):
        attention_for(packed(a_pack(ROW), "meta"), torch.float32)
