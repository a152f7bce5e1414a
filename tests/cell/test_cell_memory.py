"""A cell whose memory cannot be lent says so when it is opened, and what to set."""

import pytest
import torch
from tests.cuda_lending import ThreadsMemory

from gyre.cell.main import require_ipc
from gyre.types.errors import ConfigError, TransferError

CPU = torch.device("cpu")


def test_memory_that_can_be_lent_is_tried_and_nothing_of_it_stays_lent():
    memory = ThreadsMemory()

    assert require_ipc(memory, CPU) is memory
    assert {} == memory.open


def test_an_allocator_whose_memory_has_no_handles_is_refused_by_name():
    class Expandable(ThreadsMemory):
        def lend(self, tensors, *, with_sums=True):
            raise TransferError("cuIpcGetMemHandle of CUDA's driver answered with status 1")

    with pytest.raises(ConfigError, match="status 1; expected PYTORCH_CUDA_ALLOC_CONF without"):
        require_ipc(Expandable(), CPU)
