"""Stands in for FlashInfer, which compiles its kernels when they are first called.

What SGLang imports of it on Hopper has its name here, and raises when it is called; norms are not
here, so that those of SGLang's own library are used.
"""

import sys
import types


def _absent(name):
    def call(*args, **kwargs):
        raise NotImplementedError(f"flashinfer.{name}: FlashInfer is not on this machine")

    return call


def _module(name, *functions):
    made = types.ModuleType(f"flashinfer.{name}")
    for function in functions:
        setattr(made, function, _absent(f"{name}.{function}"))
    sys.modules[made.__name__] = made
    return made


bmm_fp8 = _absent("bmm_fp8")
prefill = _module("prefill", "cudnn_batch_prefill_with_kv_cache")
sampling = _module("sampling", "min_p_sampling_from_probs", "top_k_top_p_sampling_from_probs")
