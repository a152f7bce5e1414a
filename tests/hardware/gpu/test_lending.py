"""Memory of a device that one process lends is read by another, and only while it is lent."""

import os
import select
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
import torch

from gyre.inference.engine.kv_cache import free_bytes
from gyre.model.cuda_ipc import CudaIpcMemory, read
from gyre.types.errors import ExposureGone, TransferError
from gyre.types.protocols import IpcHandle

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
CUDA = torch.device("cuda", 0)
LENDER = """
import sys, msgspec, torch
from pathlib import Path
from gyre.model.cuda_ipc import CudaIpcMemory
device = torch.device("cuda", 0)
values = torch.arange(3_000_001, device=device, dtype=torch.int32)
loan = CudaIpcMemory(device, Path(sys.argv[1])).lend([values, values[5:].bfloat16(), values[:0]])
print(msgspec.json.encode(loan.lent).decode(), flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        loan.end()
        values.zero_()
        torch.cuda.synchronize()
    if line.strip() == "give back":
        values = None
        loan.end()
        torch.cuda.empty_cache()
    print("done", flush=True)
"""
READER = """
import sys, msgspec, torch
from pathlib import Path
from gyre.model.cuda_ipc import CudaIpcMemory, sums_of
from gyre.types.errors import TransferError
from gyre.types.protocols import IpcHandle
device = torch.device("cuda", 0)
lent = msgspec.json.decode(sys.argv[2], type=IpcHandle)
try:
    with CudaIpcMemory(device, Path(sys.argv[1])).borrowed(lent) as parts:
        print("reads", flush=True)
        sys.stdin.readline()
        copies = [one.clone() for one in parts]
    print("same" if sums_of(copies) == lent.sums else "other", flush=True)
except TransferError as error:
    print("told", flush=True)
print(int(torch.arange(100, device=device).sum()), flush=True)
"""
ALLOCATORS = ["expandable_segments:True", "backend:cudaMallocAsync"]
CHECKED = """
import sys, torch
from pathlib import Path
from gyre.model.cuda_ipc import CudaIpcMemory
from gyre.cell.main import require_ipc
from gyre.types.errors import ConfigError
device = torch.device("cuda", 0)
try:
    require_ipc(CudaIpcMemory(device, Path(sys.argv[1])), device)
except ConfigError as error:
    print(error)
"""


def started(*arguments):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", *map(str, arguments)], **pipes)


@pytest.fixture
def lender(tmp_path):
    with started(LENDER, tmp_path) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def memory(tmp_path):
    return CudaIpcMemory(CUDA, tmp_path)


def told(process):
    return msgspec.json.decode(process.stdout.readline(), type=IpcHandle)


def order(process, what):
    process.stdin.write(f"{what}\n")
    process.stdin.flush()


def is_done(process, within_s):
    return bool(select.select([process.stdout], [], [], within_s)[0])


def ended(process):
    """It lends nothing any more, and its memory is something else."""
    order(process, "end")
    process.stdout.readline()


def room():
    return [
        torch.empty(3_000_001, device=CUDA, dtype=torch.int32),
        torch.empty(2_999_996, device=CUDA, dtype=torch.bfloat16),
        torch.empty(0, device=CUDA, dtype=torch.int32),
    ]


def test_another_process_reads_what_is_lent_until_it_is_lent_no_more(lender, memory, tmp_path):
    lent, found = told(lender), room()
    for _ in range(2):
        read(memory, lent, found)
        expected = torch.arange(3_000_001, device=CUDA, dtype=torch.int32)
        assert torch.equal(expected, found[0])
        assert torch.equal(expected[5:].bfloat16(), found[1])

    ended(lender)
    with pytest.raises(ExposureGone, match="not lent any more"):
        read(memory, lent, room())
    assert [] == list(tmp_path.iterdir())


def test_what_is_taken_back_while_it_is_read_is_told(lender, memory):
    lent = told(lender)

    def read_slowly():
        with memory.borrowed(lent):
            order(lender, "end")
            # It waits for this reader, who is at it.
            assert not is_done(lender, 1.0)

    with pytest.raises(ExposureGone):
        read_slowly()
    assert is_done(lender, 60.0)


def test_memory_that_is_read_is_not_given_back_to_the_driver(lender, memory):
    lent, found = told(lender), []

    def read_slowly():
        with memory.borrowed(lent) as parts:
            order(lender, "give back")
            assert not is_done(lender, 1.0)
            found.append(parts[0].view(torch.int32).clone())

    with pytest.raises(ExposureGone):
        read_slowly()
    assert is_done(lender, 60.0)
    assert torch.equal(torch.arange(3_000_001, device=CUDA, dtype=torch.int32), found[0])


def test_a_lender_that_is_killed_spoils_neither_what_is_read_nor_the_reader(lender, tmp_path):
    """In a process of its own, because a fault of a device ends all that a process does there."""
    lent = msgspec.json.encode(told(lender)).decode()
    with started(READER, tmp_path, lent) as reader:
        assert "reads\n" == reader.stdout.readline()
        lender.kill()
        lender.wait()
        order(reader, "go on")
        outcome, usable = reader.stdout.readline(), reader.stdout.readline()
        late = started(READER, tmp_path, lent).communicate()[0].splitlines()

    assert outcome in ("same\n", "told\n")
    assert "4950\n" == usable
    assert ["told", "4950"] == late


def test_a_handle_that_is_none_is_refused(lender, memory):
    lent = told(lender)
    for pieces in (("00" * 63,), ("5a" * 64,)):
        with pytest.raises(TransferError):
            read(memory, replace(lent, pieces=pieces), room())


@pytest.mark.parametrize("setting", ALLOCATORS)
def test_an_allocator_whose_memory_cannot_be_lent_is_found_when_a_cell_opens(setting, tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", CHECKED, tmp_path],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert "expected PYTORCH_CUDA_ALLOC_CONF without" in said


def test_memory_that_torch_keeps_and_nothing_uses_is_free():
    torch.cuda.empty_cache()
    before = free_bytes(CUDA)
    taken = torch.empty(2**28, dtype=torch.uint8, device=CUDA)
    while_taken = free_bytes(CUDA)
    del taken

    assert 2**27 < before - while_taken
    assert before - free_bytes(CUDA) < 2**27
