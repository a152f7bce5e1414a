"""Seconds and bytes of work on a device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one run took."""

    seconds: float
    peak_bytes: int
    """Most device memory held by tensors, before and during the run."""


def timed(work: Callable[[], T]) -> tuple[T, Taken]:
    """What the work gives, and what it took from an idle device to an idle device."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return found, Taken(seconds=seconds, peak_bytes=torch.cuda.max_memory_allocated())


def ceilings() -> dict[str, float]:
    """Bytes per second of a copy and bf16 operations per second of a product, as found here."""
    source = torch.empty(2**31, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copied = min(timed(lambda: target.copy_(source))[1].seconds for _ in range(10))
    product = min(timed(lambda: square @ square)[1].seconds for _ in range(10))
    return {
        "copy_bytes_per_s": 2 * source.numel() / copied,
        "bf16_flops": 2 * 8192**3 / product,
    }
