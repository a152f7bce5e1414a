"""A device without room for some work is named, and what the work had taken is let go."""

from collections.abc import Callable
from typing import TypeVar

import torch

from gyre.types.errors import OutOfMemory

_ON_CPU = "DefaultCPUAllocator"
"""How torch says it of main memory, for which it has no type of its own."""

Made = TypeVar("Made")


def oom_guard(doing: str, work: Callable[[], Made]) -> Made:
    """What `work` returns; raises OutOfMemory where the device has no room for it."""
    try:
        return work()
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and _ON_CPU not in str(error):
            raise
        said = str(error).splitlines()[0]
    # Raised here and not above, because an error's cause holds on to every tensor in its frames.
    release()
    raise OutOfMemory(f"{doing}: {said}")


def release() -> None:
    """Memory that torch keeps for later goes back to the device, for others to use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def synchronize() -> None:
    """What was asked of any device is done: that of a cell need not be the thread's current one."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            # Others are left alone, because waiting for one makes it part of this process.
            if torch.cuda.memory_reserved(number):
                torch.cuda.synchronize(number)
