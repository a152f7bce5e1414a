"""How an ask is sampled, in the words that vLLM and SGLang share.

Every setting is said, because a server has preferences of its own, or takes them from its model's
folder (SPEC 4.6).
"""

from gyre.inference.clients.wire import Field
from gyre.types.sampling import SamplingParams


def shared(sampling: SamplingParams) -> dict[str, Field]:
    """What both call by the same names."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_ids),
        "stop": list(sampling.stop),
        "skip_special_tokens": False,
    }


def of_vllm(sampling: SamplingParams, *, stream_tokens: int) -> dict[str, Field]:
    """For both wires of vLLM, which tells so many tokens with an event."""
    fields: dict[str, Field] = {
        "max_tokens": sampling.max_tokens,
        **shared(sampling),
        "include_stop_str_in_output": True,
        "logprobs": 0,
        "stream_interval": stream_tokens,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


def of_sglang(sampling: SamplingParams, *, stream_tokens: int) -> dict[str, Field]:
    fields: dict[str, Field] = {
        "max_new_tokens": sampling.max_tokens,
        **shared(sampling),
        # An ask names every id that ends it; with this set SGLang would look for none of them.
        "ignore_eos": not sampling.stop_ids,
        "no_stop_trim": True,
        "stream_interval": stream_tokens,
    }
    if sampling.seed is not None:
        fields["sampling_seed"] = sampling.seed
    return fields
