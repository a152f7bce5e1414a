"""Keys and values are where they were put, and their memory comes and goes."""

import gc
import resource
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from gyre.inference.engine.kv_cache import (
    KvCache,
    affordable_tokens,
    kv_bytes_per_token,
    move_weights,
)
from gyre.model.network import ModelDims
from gyre.types.errors import InternalError, OutOfMemory

SHAPE = ModelDims(
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=3,
    vocabulary=10,
    context=100,
    parameters=1,
    layer_parameters=1,
)
CPU = torch.device("cpu")
SPARE_BYTES = 2**26
"""What small things may take where large ones are refused."""


def store(num_blocks=5, block_tokens=4, dtype=torch.float32):
    return KvCache(SHAPE, num_blocks=num_blocks, block_tokens=block_tokens, dtype=dtype, device=CPU)


@contextmanager
def no_more_memory():
    """Any further large piece of memory is refused to this process."""
    # What others left must not be given back meanwhile.
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, hard))
    taken = []
    try:
        # What others freed is the allocator's, and needs nobody's leave.
        with suppress(RuntimeError):
            while True:
                taken.append(torch.empty(SPARE_BYTES, dtype=torch.uint8))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_what_is_written_to_slots_is_read_by_block():
    of = store()
    keys, values = torch.randn(2, 2, 6, 3, generator=torch.Generator().manual_seed(0))
    # Block 3, then the first half of block 1.
    of.write(1, torch.tensor([12, 13, 14, 15, 4, 5]), keys, values)
    read = of.read([3, 1])

    assert (2, 2, 2, 8, 3) == tuple(read.shape)
    assert torch.equal(keys, read[1, 0, :, :6])
    assert torch.equal(values, read[1, 1, :, :6])
    assert not read[0].any()


def test_blocks_move_between_stores():
    one, two = store(), store(num_blocks=3)
    one.values.copy_(torch.randn(one.values.shape, generator=torch.Generator().manual_seed(0)))
    two.fill([2, 0], one.read([1, 4]))

    assert torch.equal(one.read([1]), two.read([2]))
    assert torch.equal(one.read([4]), two.read([0]))
    assert not two.read([1]).any()


def test_memory_is_given_back_and_taken_again():
    of = store()
    of.release()

    assert not of.is_held
    with pytest.raises(InternalError):
        of.layer(0)
    of.allocate()
    assert of.is_held
    assert not of.values.any()


@pytest.mark.parametrize("act", [KvCache.read, lambda of, blocks: of.fill(blocks, wide(of))])
def test_blocks_that_there_is_no_room_to_move_are_named(act):
    of = store(num_blocks=2**19)
    with no_more_memory(), pytest.raises(OutOfMemory, match=r"blocks.*: no room"):
        act(of, range(of.num_blocks))


@pytest.mark.parametrize("act", [KvCache.read, lambda of, blocks: of.fill(blocks, wide(of))])
def test_no_room_for_what_python_keeps_is_no_room(act, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    of = store()
    monkeypatch.setattr(KvCache, "_slots", refuse)
    with pytest.raises(OutOfMemory, match="2 blocks"):
        act(of, [0, 1])


def wide(of):
    """Numbers of another type, of which a copy has to be made; a view of one."""
    return torch.zeros((), dtype=torch.float64).expand(of.values.shape)


def test_memory_that_is_not_there_is_named_and_may_be_asked_for_again():
    of = store(num_blocks=2**19)
    of.release()
    with no_more_memory(), pytest.raises(OutOfMemory, match=str(of.num_bytes)):
        of.allocate()

    assert not of.is_held
    of.allocate()
    assert of.is_held


def test_a_token_takes_its_keys_and_values_of_all_layers():
    assert 2 * 2 * 2 * 3 * 4 == kv_bytes_per_token(SHAPE, torch.float32)
    assert 20 * kv_bytes_per_token(SHAPE, torch.bfloat16) == store(dtype=torch.bfloat16).num_bytes
    assert 0 < affordable_tokens(SHAPE, torch.float32, CPU)


def test_weights_that_cannot_be_moved_stay_where_they_are():
    # What is on no real device cannot be copied from it.
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])
    before = [one.data_ptr() for one in module.parameters()]
    with pytest.raises(OutOfMemory):
        move_weights(module, CPU)

    assert before == [one.data_ptr() for one in module.parameters()]
    assert ["cpu", "cpu", "meta", "meta"] == [one.device.type for one in module.parameters()]
