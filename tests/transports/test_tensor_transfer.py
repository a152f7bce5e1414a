"""Tensors of some processes arrive in others, whole or cut in another way, or not at all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.transports import tensor_transfer
from gyre.transports.tensor_layout import BLOCK_BYTES, TensorSlice
from gyre.transports.tensor_transfer import TensorBytes, expose, fetch
from gyre.types.errors import TransferError
from gyre.types.protocols import Exposure

RNG = np.random.default_rng(7)


class Memory:
    """A transport within one process, which counts what is read and may spoil it."""

    def __init__(self):
        self.held = []
        self.num_read = 0
        self.spoil = None

    def expose(self, parts, *, version):
        self.held.append(bytearray(b"".join(parts)))
        size = len(self.held[-1])
        key = f"{len(self.held):032x}"
        return Exposure(kind="memory", peer="here", key=key, version=version, num_bytes=size)

    def read(self, given, at, into):
        data = self.held[int(given.key, 16) - 1]
        assert 0 <= at <= at + len(into) <= len(data)
        into[:] = data[at : at + len(into)]
        self.num_read += len(into)

    def withdraw(self, given): ...

    def close(self): ...


def part(whole, cut):
    box = np.ascontiguousarray(whole[cut.slices(TensorSlice.all_of(whole.shape))])
    return TensorBytes(dtype=str(whole.dtype), cut=cut, data=box.reshape(-1).view(np.uint8))


def array(one):
    return np.asarray(one.data).view(one.dtype).reshape(one.cut.shape)


def of_shards(shape, shards, dim):
    size = list(shape)
    size[dim] //= shards
    return [TensorSlice.part_of(shape, tuple(size), at) for at in range(shards)]


def test_tensors_arrive_as_they_were():
    transport = Memory()
    tensors = {
        "w": RNG.normal(size=(300, 700)).astype(np.float32),
        "scale": np.float64(3.5).reshape(()),
        "ids": np.arange(5, dtype=np.int32),
        "none": np.zeros((0, 4), np.float32),
        "long": RNG.integers(0, 255, 3 * BLOCK_BYTES // 2, dtype=np.uint8),
    }
    bundle = expose(
        transport,
        {name: part(one, TensorSlice.all_of(one.shape)) for name, one in tensors.items()},
        version=3,
    )
    wanted = {name: (name, TensorSlice.all_of(one.shape)) for name, one in tensors.items()}
    found = fetch(transport, [bundle], wanted)

    assert 3 == bundle.version
    assert list(tensors) == list(found)
    for name, one in tensors.items():
        assert str(one.dtype) == found[name].dtype
        assert np.array_equal(one, array(found[name]))


@given(st.data())
def test_any_layout_is_made_from_any_other(data):
    """Stages hold different tensors, shards boxes of them; keys of the reader are its own."""
    transport = Memory()
    tensors = {f"{at}": RNG.normal(size=(8, 12)).astype(np.float32) for at in range(3)}
    stages, shards, dim = data.draw(st.tuples(*map(st.sampled_from, ([1, 3], [1, 2, 4], [0, 1]))))
    given = [
        expose(
            transport,
            {
                name: part(tensors[name], of_shards((8, 12), shards, dim)[shard])
                for name in list(tensors)[stage::stages]
            },
            version=1,
        )
        for stage in range(stages)
        for shard in range(shards)
    ]
    shards, dim = data.draw(st.tuples(*map(st.sampled_from, ([1, 2, 4], [0, 1]))))
    for cut in of_shards((8, 12), shards, dim):
        found = fetch(transport, given, {f"mine.{name}": (name, cut) for name in tensors})

        for name, whole in tensors.items():
            expected = whole[cut.slices(TensorSlice.all_of(whole.shape))]
            assert np.array_equal(expected, array(found[f"mine.{name}"]))


def test_a_shard_reads_little_more_than_what_it_needs():
    transport = Memory()
    whole = RNG.normal(size=(64, BLOCK_BYTES // 16)).astype(np.float32)
    bundle = expose(transport, {"w": part(whole, TensorSlice.all_of(whole.shape))}, version=1)
    cut = of_shards(whole.shape, 8, 0)[3]
    found = fetch(transport, [bundle], {"w": ("w", cut)})

    assert np.array_equal(whole[24:32], array(found["w"]))
    assert transport.num_read <= whole.nbytes / 8 + 2 * BLOCK_BYTES + bundle.sheet_bytes


def test_bytes_that_changed_on_their_way_are_not_taken():
    transport = Memory()
    whole = RNG.normal(size=(64, 64)).astype(np.float32)
    bundle = expose(transport, {"w": part(whole, TensorSlice.all_of(whole.shape))}, version=1)
    wanted = {"w": ("w", TensorSlice.all_of(whole.shape))}
    for at in (bundle.sheet_bytes - 3, bundle.num_bytes - 1):
        transport.held[0][at] ^= 1
        with pytest.raises(TransferError, match="hash"):
            fetch(transport, [bundle], wanted)
        transport.held[0][at] ^= 1

    assert np.array_equal(whole, array(fetch(transport, [bundle], wanted)["w"]))


def test_parts_of_two_versions_make_nothing():
    transport = Memory()
    whole = np.zeros((4, 4), np.float32)
    given = [
        expose(transport, {"w": part(whole, cut)}, version=version)
        for version, cut in enumerate(of_shards((4, 4), 2, 0))
    ]

    with pytest.raises(TransferError, match=r"expected parts of one version, found \[0, 1\]"):
        fetch(transport, given, {"w": ("w", TensorSlice.all_of((4, 4)))})


def test_a_tensor_that_nobody_holds_is_named():
    transport = Memory()
    bundle = expose(transport, {"w": part(np.zeros(4), TensorSlice.all_of((4,)))}, version=1)

    with pytest.raises(TransferError, match="v: expected somebody who holds it"):
        fetch(transport, [bundle], {"v": ("v", TensorSlice.all_of((4,)))})


@pytest.mark.parametrize("size", [0, -1, 2**40])
def test_a_sheet_of_impossible_size_is_not_read(size):
    transport = Memory()
    bundle = expose(transport, {"w": part(np.zeros(4), TensorSlice.all_of((4,)))}, version=1)

    with pytest.raises(TransferError, match="expected a sheet of up to"):
        fetch(transport, [replace(bundle, sheet_bytes=size)], {})
    assert 0 == transport.num_read


def test_a_part_of_another_size_than_it_says_is_not_exposed():
    one = TensorBytes(dtype="float32", cut=TensorSlice.all_of((4,)), data=np.zeros(15, np.uint8))

    with pytest.raises(TransferError, match="expected 16 bytes, found 15"):
        expose(Memory(), {"w": one}, version=1)


def test_what_is_read_whole_is_not_copied_again():
    transport = Memory()
    whole = RNG.normal(size=(64, 64)).astype(np.float32)
    bundle = expose(transport, {"w": part(whole, TensorSlice.all_of(whole.shape))}, version=1)
    found = tensor_transfer.fetch(
        transport, [bundle], {"w": ("w", TensorSlice.all_of(whole.shape))}
    )

    assert found["w"].data.base is not None
