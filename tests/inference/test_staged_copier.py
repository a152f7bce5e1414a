"""Bytes that cross between tensors and files are the same on the other side."""

import os
import tempfile

import pytest
import torch

from gyre.inference.engine.request import KVBlocks
from gyre.inference.kv_transfer import StagedCopier, put
from gyre.types.errors import OutOfMemory

PART = 64
SIZES = (0, 1, PART - 1, PART, PART + 1, 40 * PART + 7)


@pytest.fixture(scope="module")
def copier():
    found = StagedCopier(lanes=3, part_bytes=PART)
    # Its threads begin with the work that they are for, of this fixture and not of a test.
    with tempfile.TemporaryFile() as file:
        found.write(torch.zeros(100 * PART, dtype=torch.uint8), file.fileno(), 0)
    yield found
    found.close()


@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_comes_back_as_it_was(copier, tmp_path, size):
    values = torch.arange(size, dtype=torch.int16)
    found = torch.zeros_like(values)
    with (tmp_path / "file").open("w+b") as file:
        copier.write(values, file.fileno(), 11)
        copier.read(file.fileno(), 11, found)

    assert torch.equal(values, found)


def test_it_has_the_place_that_was_named_and_no_other(copier, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 300)
    with path.open("r+b") as file:
        copier.write(torch.zeros(100, dtype=torch.uint8), file.fileno(), 100)

    assert b"x" * 100 + bytes(100) + b"x" * 100 == path.read_bytes()


def test_a_file_that_ends_too_soon_is_an_error(copier, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(5 * PART - 1))
    with path.open("rb") as file, pytest.raises(OSError, match="end came too soon"):
        copier.read(file.fileno(), 0, torch.zeros(5 * PART, dtype=torch.uint8))


def test_an_error_leaves_threads_that_go_on(copier, tmp_path):
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file"):
        copier.write(torch.ones(10 * PART), closed, 0)
    with (tmp_path / "file").open("w+b") as file:
        copier.write(torch.ones(PART), file.fileno(), 0)

    assert 4 * PART == (tmp_path / "file").stat().st_size


def test_blocks_for_which_nothing_can_be_pinned_leave_no_file(copier, monkeypatch, tmp_path):
    def refuse(*_):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(copier, "write", refuse)
    blocks = KVBlocks(token_ids=bytes(4), version=1, values=torch.zeros(2))

    with pytest.raises(OutOfMemory, match="no room for cached blocks"):
        put(blocks, tmp_path / "one.kv", copier)
    assert [] == list(tmp_path.iterdir())
