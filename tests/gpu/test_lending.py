"""Memory of a device that one process lends is read by another, and only while it is lent."""

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
import torch

from gyre.model.lending import DeviceMemory, read
from gyre.words.errors import Outdated, TransferError
from gyre.words.transfers import Lent

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
CUDA = torch.device("cuda", 0)
LENDER = """
import sys, msgspec, torch
from gyre.model.lending import DeviceMemory
device = torch.device("cuda", 0)
values = torch.arange(3_000_001, device=device, dtype=torch.int32)
loan = DeviceMemory(device).lend([values, values[5:].bfloat16(), values[:0]])
print(msgspec.json.encode(loan.lent).decode(), flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        loan.end()
        values.zero_()
        torch.cuda.synchronize()
    print("done", flush=True)
"""


@pytest.fixture
def lender():
    with subprocess.Popen(
        [sys.executable, "-c", LENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


def told(process):
    return msgspec.json.decode(process.stdout.readline(), type=Lent)


def ended(process):
    """It lends nothing any more, and its memory is something else."""
    process.stdin.write("end\n")
    process.stdin.flush()
    process.stdout.readline()


def room():
    return [
        torch.empty(3_000_001, device=CUDA, dtype=torch.int32),
        torch.empty(2_999_996, device=CUDA, dtype=torch.bfloat16),
        torch.empty(0, device=CUDA, dtype=torch.int32),
    ]


def test_another_process_reads_what_is_lent_until_it_is_lent_no_more(lender):
    lent, memory, found = told(lender), DeviceMemory(CUDA), room()
    for _ in range(2):
        read(memory, lent, found)
        expected = torch.arange(3_000_001, device=CUDA, dtype=torch.int32)
        assert torch.equal(expected, found[0])
        assert torch.equal(expected[5:].bfloat16(), found[1])

    ended(lender)
    with pytest.raises(Outdated, match="not lent any more"):
        read(memory, lent, room())


def test_what_is_taken_back_while_it_is_read_is_told(lender):
    lent, memory = told(lender), DeviceMemory(CUDA)

    def read_slowly():
        with memory.borrowed(lent):
            ended(lender)

    with pytest.raises(Outdated):
        read_slowly()


def test_a_handle_that_is_none_is_refused(lender):
    lent = told(lender)
    for pieces in (("00" * 63,), ("5a" * 64,)):
        with pytest.raises(TransferError):
            read(DeviceMemory(CUDA), replace(lent, pieces=pieces), room())
