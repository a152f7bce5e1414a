"""Seconds of a device by kernel, as the profiler of torch sees them, and by what kernels do."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

GROUPS = (
    # Named after all that was fused into them, and sometimes after what comes next.
    ("compiled", r"triton_(poi|per|red)_"),
    # Of our own kernels of decoding, `_read` and `_join` attend, and `_write` puts keys away.
    ("attention", r"^_(read|join)$|flex_attention|flash|fmha|cudnn.*sdpa|sdpa|paged_attention"),
    ("matrices", r"gemm|cutlass|nvjet|xmma|matmul|splitK|wgrad|s16816|\bmm\b|addmm"),
    ("copies between host and device", r"Memcpy (HtoD|DtoH)"),
    ("copies and fills", r"^_write$|Memcpy|Memset|copy_kernel|FillFunctor|fill_|\bcopy_"),
    ("indexing", r"index|gather|scatter"),
)
"""What a kernel does by the first pattern in its name; anything else is "other"."""
_COMPILED = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in GROUPS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel over some work."""

    name: str
    calls: int
    seconds: float


def group_of(kernel: str) -> str:
    return next((name for name, pattern in _COMPILED if pattern.search(kernel)), "other")


def by_group(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Seconds of each group, most first."""
    found: dict[str, float] = defaultdict(float)
    for one in kernels:
        found[group_of(one.name)] += one.seconds
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def kernels(work: Callable[[], object]) -> list[Kernel]:
    """Those that the work runs, longest first; of a machine without a device its operators."""
    on_device = torch.cuda.is_available()
    activity = ProfilerActivity.CUDA if on_device else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        work()
        if on_device:
            torch.cuda.synchronize()
    found = [
        Kernel(
            name=one.key,
            calls=one.count,
            seconds=(one.self_device_time_total if on_device else one.self_cpu_time_total) / 1e6,
        )
        for one in seen.key_averages()
    ]
    # What only waits for others, or marks a span of them, is not work of its own.
    busy = [one for one in found if one.seconds > 0 and not one.name.startswith("ProfilerStep")]
    return sorted(busy, key=lambda one: -one.seconds)
