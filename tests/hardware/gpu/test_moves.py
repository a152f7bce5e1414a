"""Blocks and weights that cross between devices, files and cells on CUDA are the same there."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gyre.cell.weight_sync import exposed_in_lanes, fetched, whole_cuts
from gyre.inference.engine.request import KVBlocks
from gyre.inference.kv_transfer import SharedFolderKvStore, StagedCopier
from gyre.model.network import Network
from gyre.model.weights import digest, digest_of
from gyre.transports.shared_memory import SharedTransport

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
CUDA = torch.device("cuda", 0)
SIZES = {
    "vocab_size": 3_000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_a_tensor_of_a_device_comes_back_from_a_file_as_it_was(tmp_path):
    """More parts than threads, and none begins before what the device was asked for earlier."""
    copier = StagedCopier(lanes=3, part_bytes=2**20)
    values = torch.empty(40_000_003, dtype=torch.uint8, device=CUDA)
    for step in range(5):
        values.copy_(torch.arange(len(values), device=CUDA).add_(step).remainder_(251))
    found = torch.empty_like(values)
    with (tmp_path / "file").open("w+b") as file:
        copier.write(values, file.fileno(), 7)
        copier.read(file.fileno(), 7, found)

    assert torch.equal(values, found)


def test_cached_blocks_are_laid_and_taken_on_a_device(tmp_path):
    values = torch.randn(4, 2, 2, 4_096, 64, device=CUDA).bfloat16()
    folder = SharedFolderKvStore(tmp_path, CUDA)
    name, _ = folder.put(KVBlocks(token_ids=bytes(16), version=3, values=values), "one")

    found = folder.take(name)

    assert (bytes(16), 3, CUDA) == (found.token_ids, found.version, found.values.device)
    assert torch.equal(values, found.values)


def test_weights_go_from_device_to_device_in_lanes(tmp_path):
    torch.manual_seed(0)
    network = Network(Qwen3ForCausalLM(Qwen3Config(**SIZES)).to(CUDA, torch.bfloat16))
    tensors = dict(network.module.named_parameters())
    transport = SharedTransport(tmp_path, owner="cell-0")
    cuts = whole_cuts({name: tuple(one.shape) for name, one in tensors.items()})

    parts = exposed_in_lanes(transport, tensors, cuts, version=1)
    found = fetched(transport, parts, cuts, version=1, device=CUDA)

    assert {CUDA} == {one.device for one in found.values()}
    assert digest(network) == digest_of(sorted((name, one.cpu()) for name, one in found.items()))
