"""Sampling on CUDA that reads the logits once: a kernel of our own weighs stretches of them.

Shapes: S rows, V tokens of the vocabulary, N stretches of it, C tokens of one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gyre.inference.engine.launching import launching
from gyre.inference.engine.sampler import STRETCH, BatchSampling, chosen, draw

MANY = 16
"""Stretches that one program weighs."""


def sample(logits_SV: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities (S), float32, of rows of which none is cut."""
    temperature_S, _, _, uniform_S = draws.numbers.unbind(dim=1)
    heat_S1 = torch.where(temperature_S == 0, 1.0, temperature_S).float()[:, None]
    highest_SN, sums_SN = weighed(logits_SV, heat_S1)
    highest_S1 = highest_SN.amax(dim=-1, keepdim=True)

    def scaled(at: Tensor) -> Tensor:
        return logits_SV.gather(1, at).float() / heat_S1 - highest_S1

    sums_SN = sums_SN * (highest_SN - highest_S1).exp()
    ids, total_S = draw(sums_SN, lambda at: scaled(at).exp(), uniform_S, logits_SV.shape[1])
    logprobs = scaled(ids[:, None])[:, 0] - total_S.log().float()
    return chosen(ids, logprobs, total_S, logits_SV, draws)


@launching
def weighed(logits_SV: Tensor, heat_S1: Tensor) -> tuple[Tensor, Tensor]:
    """Of each stretch (S, N) the highest logit, and the sum of likelihoods relative to it."""
    rows, tokens = logits_SV.shape
    stretches = triton.cdiv(tokens, STRETCH)
    highest_SN = heat_S1.new_empty((rows, stretches))
    sums_SN = torch.empty_like(highest_SN)
    _weigh[(rows, triton.cdiv(stretches, MANY))](
        logits_SV, heat_S1, highest_SN, sums_SN, tokens, stretches, logits_SV.stride(0),
        STRETCH=STRETCH, MANY=MANY, num_warps=4,
    )  # fmt: skip
    return highest_SN, sums_SN


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(
    logits, heat, highest, sums, tokens, stretches, logits_row,
    STRETCH: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    stretch = tl.program_id(1) * MANY + tl.arange(0, MANY)
    at = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
    values = tl.load(
        logits + row.to(tl.int64) * logits_row + at, mask=at < tokens, other=-float("inf")
    ).to(tl.float32) / tl.load(heat + row)
    top = tl.max(values, 1)
    # A stretch without a likely token weighs nothing, which is not what inf - inf is.
    shift = tl.where(top == -float("inf"), 0.0, top)
    weight = tl.sum(tl.exp(values - shift[:, None]), 1)
    is_there = stretch < stretches
    tl.store(highest + row * stretches + stretch, top, mask=is_there)
    tl.store(sums + row * stretches + stretch, weight, mask=is_there)
