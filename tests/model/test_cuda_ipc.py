"""Memory that was lent is let go when nobody reads it, and not before."""

import weakref
from dataclasses import replace

import pytest
import torch

from gyre.model import cuda_ipc
from gyre.model.cuda_ipc import CudaIpcMemory, reading, sums_of
from gyre.types.errors import ExposureGone, TransferError
from gyre.types.protocols import MemoryRange

CPU = torch.device("cpu")
META = torch.device("meta")
"""Has tensors of any size, and none of their bytes."""
NOTHING = MemoryRange(piece=0, at=0, num_bytes=0)


@pytest.fixture(autouse=True)
def without_a_driver(monkeypatch):
    """Loans of main memory, which nobody can open: what is left is when they are let go."""
    monkeypatch.setattr(cuda_ipc, "_settle", lambda device: None)
    monkeypatch.setattr(
        cuda_ipc, "_place", lambda one, pieces: MemoryRange(piece=0, at=0, num_bytes=one.nbytes)
    )
    monkeypatch.setattr(cuda_ipc, "READERS_S", 0.05)


@pytest.fixture
def memory(tmp_path):
    return CudaIpcMemory(CPU, tmp_path)


def lent_by(memory):
    """A loan, and what tells whether its tensor is still there."""
    tensor = torch.ones(3)
    return memory.lend([tensor]), weakref.ref(tensor)


def test_a_loan_that_nobody_reads_is_let_go_when_it_ends(memory, tmp_path):
    loan, tensor = lent_by(memory)
    is_held = tensor() is not None
    loan.end()
    loan.end()

    assert is_held
    assert tensor() is None
    assert [] == list(tmp_path.iterdir())


def test_memory_that_is_read_is_kept_until_the_reader_is_gone(memory, tmp_path):
    loan, tensor = lent_by(memory)
    with reading(tmp_path, loan.lent.key):
        loan.end()
        with pytest.raises(ExposureGone), reading(tmp_path, loan.lent.key):
            pass
        memory.lend([]).end()
        is_held = tensor() is not None
    memory.lend([]).end()

    assert is_held
    assert tensor() is None


def test_a_reader_of_a_loan_that_has_ended_opens_nothing(memory, monkeypatch):
    def opened(handle):
        raise AssertionError("a handle of an ended loan is opened")

    monkeypatch.setattr(cuda_ipc, "_opened", opened)
    loan, _ = lent_by(memory)
    loan.end()

    with pytest.raises(ExposureGone, match="not lent any more"), memory.borrowed(loan.lent):
        pass


def test_nothing_that_is_lent_is_on_the_device_of_who_reads_it(tmp_path, monkeypatch):
    """Beside parts of that device, because all are added up and compared together."""
    monkeypatch.setattr(cuda_ipc, "_check", lambda stamp, lent: None)
    loan, _ = lent_by(CudaIpcMemory(CPU, tmp_path))
    lent = replace(loan.lent, pieces=(), parts=(NOTHING,))

    with CudaIpcMemory(META, tmp_path).borrowed(replace(lent, stamp=NOTHING)) as parts:
        assert [META] == [one.device for one in parts]
    loan.end()


def test_sums_are_told_to_who_makes_a_copy(memory):
    tensors = [torch.arange(5), torch.ones(3)]
    both = memory.lend(tensors), memory.lend(tensors, with_sums=False)

    assert [sums_of(tensors), ()] == [one.lent.sums for one in both]
    for one in both:
        one.end()


def test_a_loan_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(TransferError, match="no room for a loan"):
        CudaIpcMemory(CPU, tmp_path / "gone").lend([torch.ones(3)])
