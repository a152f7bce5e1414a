"""Claims over the wire: what arrives is what was sent, or it is refused by name."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import load, save

from gyre.batching.group_packer import packed, unpacked
from gyre.types.errors import RequestError
from gyre.types.training import Claim, Pack, Share

NAMES = ("ids", "positions", "tout", "predictors", "labels", "behaviour", "shares")


def pack_of(seed, tokens, targets):
    rng = np.random.default_rng(seed)
    ints = {
        name: rng.integers(-(2**31), 2**31, size, dtype=np.int32)
        for name, size in (
            ("ids", tokens),
            ("positions", tokens),
            ("tout", tokens),
            ("predictors", targets),
            ("labels", targets),
            ("shares", targets),
        )
    }
    return Pack(**ints, behaviour=rng.standard_normal(targets).astype(np.float32))


def claim_of(*sizes, oversize=False):
    share = Share(execution="e-1", advantage=-0.5, num_targets=7, trajectory=3)
    packs = tuple(pack_of(n, *size) for n, size in enumerate(sizes))
    return Claim(shares=(share,), packs=packs, oversize=oversize)


def assert_same(one, two):
    assert (one.shares, one.oversize, len(one.packs)) == (two.shares, two.oversize, len(two.packs))
    for here, there in zip(one.packs, two.packs, strict=True):
        for name in NAMES:
            assert getattr(here, name).dtype == getattr(there, name).dtype
            assert np.array_equal(getattr(here, name), getattr(there, name))


@given(
    sizes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4),
    shares=st.lists(
        st.builds(
            Share,
            execution=st.text(max_size=8),
            advantage=st.floats(allow_nan=False, allow_infinity=False),
            num_targets=st.integers(0, 2**40),
            trajectory=st.none() | st.integers(0, 9),
        ),
        max_size=3,
    ),
    oversize=st.booleans(),
)
def test_what_arrives_is_what_was_sent(sizes, shares, oversize):
    packs = tuple(pack_of(n, *size) for n, size in enumerate(sizes))
    claim = Claim(shares=tuple(shares), packs=packs, oversize=oversize)

    assert_same(claim, unpacked(packed(claim)))


@given(data=st.binary(max_size=64))
def test_garbage_is_refused(data):
    with pytest.raises(RequestError):
        unpacked(data)


@given(at=st.integers(0, 10_000))
def test_a_claim_that_is_cut_short_is_refused(at):
    data = packed(claim_of((5, 3), (2, 1)))

    with pytest.raises(RequestError):
        unpacked(data[: at % len(data)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found.pop("1.tout"), "1.tout"),
        (lambda found: found.update({"2.ids": found["0.ids"]}), "2.ids"),
        (lambda found: found.update({"0.ids": found["0.ids"].astype(np.int64)}), "int64"),
        (lambda found: found.update({"0.tout": found["0.tout"][:-1]}), "tout: expected as many"),
        (lambda found: found.update({"1.behaviour": np.zeros((1, 1), np.float32)}), "2 dimensions"),
    ],
)
def test_arrays_that_do_not_fit_are_named(change, says):
    data = packed(claim_of((5, 3), (2, 1)))
    found = load(data)
    change(found)
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    metadata = json.loads(header)["__metadata__"]

    with pytest.raises(RequestError, match=says):
        unpacked(save(found, metadata=metadata))


def test_a_later_format_is_refused_by_number():
    data = packed(claim_of((1, 1))).replace(b'\\"format\\":1', b'\\"format\\":2')

    with pytest.raises(RequestError, match="format 2"):
        unpacked(data)


@pytest.mark.parametrize("num_packs", [2**60, -1])
def test_a_claim_of_more_packs_than_it_holds_is_refused_before_any_is_looked_for(num_packs):
    about = {"format": 1, "num_packs": num_packs, "oversize": False, "shares": []}

    with pytest.raises(RequestError, match="packs"):
        unpacked(save({}, metadata={"claim": json.dumps(about)}))


def test_a_header_that_nests_without_end_is_refused():
    header = b"[" * 100_000

    with pytest.raises(RequestError):
        unpacked(len(header).to_bytes(8, "little") + header)
