"""On CUDA keys lie where they were put, and decoding is attention over those that a call has."""

import pytest
import torch

from gyre.inference.engine.cuda_graphs import BLOCK_TOKENS

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
LENGTHS = [1, 5, 127, 128, 129, 1_000, 5_000]


@pytest.mark.parametrize("calls", [1, 7, 200])
@pytest.mark.parametrize(("group", "size"), [(1, 64), (2, 128), (3, 64), (8, 128)])
def test_it_is_attention_over_the_blocks_of_each_call(group, size, calls):
    """Alone, few calls are shared among programs; many are not."""
    from gyre.inference.engine.triton_kernels import attend

    generator = torch.Generator("cuda").manual_seed(group)
    lengths = (LENGTHS[::-1] * calls)[:calls]
    counts = [-(-one // BLOCK_TOKENS) for one in lengths]
    slots = (sum(counts) + 1) * BLOCK_TOKENS
    held = torch.randn(2, 2, slots, size, device="cuda", generator=generator).bfloat16()
    order = torch.randperm(sum(counts), device="cuda", generator=generator).int() + 1
    blocks = torch.zeros(calls, max(counts), dtype=torch.int32, device="cuda")
    for row, mine in enumerate(order.split(counts)):
        blocks[row, : len(mine)] = mine
    query = torch.randn(calls, 2 * group, size, device="cuda", generator=generator).bfloat16()
    sees = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    found = attend(query, held, blocks, sees, 0.1, BLOCK_TOKENS)

    for row, length in enumerate(lengths):
        inside = torch.arange(length, device="cuda")
        slot = blocks[row].long()[inside // BLOCK_TOKENS] * BLOCK_TOKENS + inside % BLOCK_TOKENS
        keys, values = held[:, :, slot].float().repeat_interleave(group, 1)
        weights = torch.softmax(query[row].float().unsqueeze(1) @ keys.transpose(1, 2) * 0.1, -1)
        torch.testing.assert_close(
            found[row].float(), (weights @ values)[:, 0], atol=2e-2, rtol=2e-2
        )


def test_what_triton_refuses_is_refused_as_all_work_of_a_device_is():
    """A size that is no power of two."""
    from gyre.inference.engine.triton_kernels import try_out

    with pytest.raises(RuntimeError, match="a kernel cannot run: CompilationError"):
        try_out(4, 2, 48, torch.bfloat16, torch.device("cuda"), BLOCK_TOKENS)


def test_the_tile_fits_the_device():
    from gyre.inference.engine.triton_kernels import REST_BYTES, TILE_BYTES, tile_for

    device = torch.device("cuda", 0)
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin

    assert tile_for(device) * TILE_BYTES + REST_BYTES <= room


@pytest.mark.parametrize("size", [64, 128])
def test_keys_and_values_are_put_into_their_slots_and_nowhere_else(size):
    """Whether heads or tokens come first in memory."""
    from gyre.inference.engine.triton_kernels import write

    generator = torch.Generator("cuda").manual_seed(size)
    held = torch.zeros(2, 3, 4 * BLOCK_TOKENS, size, device="cuda", dtype=torch.bfloat16)
    slots = torch.randperm(4 * BLOCK_TOKENS, device="cuda", generator=generator)[:77]
    keys = torch.randn(77, 3, size, device="cuda", generator=generator).bfloat16().transpose(0, 1)
    values = torch.randn(3, 77, size, device="cuda", generator=generator).bfloat16()
    expected = held.clone()
    expected[0].index_copy_(1, slots, keys)
    expected[1].index_copy_(1, slots, values)

    write(held, slots, keys, values)

    assert torch.equal(expected, held)
