"""What lets a whole GPTModel run on a CPU, for tests alone: it asks for CUDA in many places."""

import contextlib
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Whatever is to be made on CUDA is made on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **kwargs)


@contextlib.contextmanager
def on_cpu():
    """The device is the CPU, and there are no random numbers of a device to keep apart."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.moe import moe_utils

    with (
        OnCpu(),
        mock.patch("torch.cuda.current_device", return_value="cpu"),
        mock.patch.object(CudaRNGStatesTracker, "fork", return_value=contextlib.nullcontext()),
        # Without Transformer Engine its router asks for a name that is defined nowhere.
        mock.patch.object(moe_utils, "te_general_gemm", None, create=True),
    ):
        yield
