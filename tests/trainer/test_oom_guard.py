"""A device without room."""

import gc
import weakref

import pytest
import torch

from gyre.trainer.offload import oom_guard
from gyre.types.errors import OutOfMemory


def test_what_has_room_is_done():
    assert 3 == oom_guard("counting", lambda: 3)


def test_no_room_in_main_memory_is_named():
    with pytest.raises(OutOfMemory, match=r"making a tensor: .*allocate"):
        oom_guard("making a tensor", lambda: torch.empty(2**60, dtype=torch.uint8))


def test_no_room_for_what_python_keeps_is_named():
    def work():
        raise MemoryError

    with pytest.raises(OutOfMemory, match="scoring: no main memory is left"):
        oom_guard("scoring", work)


def test_no_room_on_an_accelerator_is_named_and_tensors_of_the_attempt_are_let_go():
    kept = []

    def work():
        tensor = torch.zeros(4)
        kept.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(OutOfMemory, match=r"scoring: CUDA out of memory") as error:
        oom_guard("scoring", work)
    gc.collect()

    assert error.value.__context__ is None
    assert kept[0]() is None


def test_other_errors_are_left_alone():
    def work():
        raise RuntimeError("the size of tensor a must match")

    with pytest.raises(RuntimeError, match="must match"):
        oom_guard("scoring", work)
