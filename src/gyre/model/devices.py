"""Which CUDA device a thread asks when it names none: the first, unless the thread says another."""

from contextlib import AbstractContextManager, nullcontext

import torch


def current(device: torch.device) -> AbstractContextManager[object]:
    """A context in which kernels, streams, events and captures of this thread are the device's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
