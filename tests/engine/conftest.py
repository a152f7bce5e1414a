"""What holds for every test of the engine."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small matrices are slower with two, and sums are added in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
