"""Blocks that one engine lends are those that another takes, or there are none."""

import json

import pytest
import torch
from tests.cuda_lending import ThreadsMemory

from gyre.inference.engine.request import KVBlocks
from gyre.inference.kv_transfer import CudaIpcKvStore
from gyre.types.errors import NotFound, OutOfMemory, RequestError

CPU = torch.device("cpu")
KV_BYTES = 2**16
FREE_BYTES = 2**12


def blocks(version=3):
    generator = torch.Generator().manual_seed(version)
    values = torch.randn(2, 2, 1, 8, 4, generator=generator).bfloat16()
    return KVBlocks(token_ids=bytes(range(32)), version=version, values=values)


@pytest.fixture
def memory():
    return ThreadsMemory()


def kv_store(memory, kv_bytes=KV_BYTES):
    return CudaIpcKvStore(memory, CPU, kv_bytes=kv_bytes, free_bytes=lambda: FREE_BYTES)


@pytest.fixture
def source(memory):
    return kv_store(memory)


@pytest.fixture
def destination(memory):
    return kv_store(memory)


def test_blocks_are_taken_as_they_were_put(source, destination):
    given = blocks()
    name, num_bytes = source.put(given, "wished-for")

    found = destination.take(name)

    assert (given.token_ids, given.version) == (found.token_ids, found.version)
    assert torch.equal(given.values, found.values)
    assert given.values.nbytes + 32 + 8 == num_bytes


def test_what_was_taken_is_its_own(source, destination):
    name, _ = source.put(blocks(), "one")
    found = destination.take(name)
    source.drop(name)

    assert torch.equal(blocks().values, found.values)


def test_what_was_dropped_is_not_found_and_its_memory_is_free(source, destination, memory):
    name, _ = source.put(blocks(), "one")
    source.drop(name)
    source.drop(name)

    with pytest.raises(NotFound, match="no cached blocks"):
        destination.take(name)
    assert {} == memory.open


def test_an_engine_that_rests_lends_nothing_any_more(source, memory):
    source.put(blocks(), "one")
    source.put(blocks(4), "two")
    source.clear()

    assert {} == memory.open


def test_more_than_an_engine_has_room_for_is_refused(memory):
    """All that it has room for is not."""
    values = torch.zeros(2, 2, 1, 2**15, 2)
    most = KVBlocks(token_ids=bytes(4 * 2**15), version=3, values=values)
    source = CudaIpcKvStore(memory, CPU, kv_bytes=KV_BYTES, free_bytes=lambda: 2**30)
    name, num_bytes = source.put(most, "one")
    kv_bytes = values.nbytes + 4 * 2**15

    assert torch.equal(values, kv_store(memory, kv_bytes).take(name).values)
    with pytest.raises(RequestError, match=f"expected up to {kv_bytes // 2 + 2**16} bytes, found"):
        kv_store(memory, kv_bytes // 2).take(name)
    assert kv_bytes < num_bytes


def test_no_more_is_laid_than_may_be_and_what_is_dropped_makes_room(source, destination):
    _, num_bytes = source.put(blocks(), "one")
    names = [source.put(blocks(), "more")[0] for _ in range(FREE_BYTES // num_bytes - 1)]

    with pytest.raises(OutOfMemory, match=f"and no more than the {FREE_BYTES} that are free may"):
        source.put(blocks(), "too many")
    source.drop(names[0])
    name, _ = source.put(blocks(4), "again")
    assert 4 == destination.take(name).version


def test_what_is_free_is_looked_at_each_time_that_blocks_are_laid(memory):
    free = [FREE_BYTES]
    source = CudaIpcKvStore(memory, CPU, kv_bytes=KV_BYTES, free_bytes=lambda: free[0])
    name, num_bytes = source.put(blocks(), "one")
    # Others have come to the device.
    free[0] = num_bytes

    with pytest.raises(OutOfMemory, match=f"{num_bytes} lie here already"):
        source.put(blocks(), "two")
    source.drop(name)
    source.put(blocks(), "two")


def test_a_device_without_room_lends_nothing_and_says_so(memory, monkeypatch):
    def lend(tensors):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "lend", lend)

    with pytest.raises(OutOfMemory, match="no room for cached blocks"):
        kv_store(memory).put(blocks(), "one")


def changed(name, change):
    told = json.loads(name)
    change(told)
    return json.dumps(told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told["tensors"]["values"].__setitem__(0, "F8"), "values: expected a type of"),
        (lambda told: told["tensors"]["values"].__setitem__(1, [1]), "found shape"),
        (lambda told: told["tensors"]["values"].__setitem__(1, [-1, -256]), "found shape"),
        (lambda told: told["tensors"].pop("values"), "2 tensors in 3 parts"),
        (lambda told: told["tensors"].update(more=["F32", [1]]), "4 tensors in 3 parts"),
        (lambda told: told["lent"]["sums"].__setitem__(0, 5), "another sum"),
        (lambda told: told.pop("lent"), "expected what an engine put"),
    ],
)
def test_a_name_that_is_none_is_refused(source, destination, change, said):
    name, _ = source.put(blocks(), "one")

    with pytest.raises(RequestError, match=said):
        destination.take(changed(name, change))


def test_a_name_of_another_kind_is_refused(destination):
    with pytest.raises(RequestError, match="expected what an engine put"):
        destination.take("call-1-7")
