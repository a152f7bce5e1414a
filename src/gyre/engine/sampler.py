"""Logits to tokens: each row drawn by one number of its own, with its log-probability.

Shapes: S rows, V tokens of the vocabulary, C tokens of one stretch of it.
"""

from dataclasses import dataclass
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor

STRETCH = 256
"""Tokens that are summed before they are looked at one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How each of S rows is drawn, on the device of the logits."""

    temperature: Tensor
    """S, float64; 0 takes the most likely token."""
    top_p: Tensor
    """S, float64; 1 keeps all."""
    top_k: Tensor
    """S, int64; the size of the vocabulary keeps all."""
    uniform: Tensor
    """S, float64 in [0, 1)."""
    is_cut: bool
    """Whether any row has a top_p or top_k that leaves something out."""
    is_greedy: bool
    """Whether any row has temperature 0."""


def seed_of(engine_seed: int, ask: str) -> int:
    """The seed of an ask that names none: of its own, and the same when it is asked again."""
    text = f"{engine_seed}/{ask}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def uniform(seed: int) -> float:
    """A number in [0, 1) that depends on the seed alone.

    Token n of a call uses its seed + n, so a call that is continued elsewhere with its seed moved
    on by the tokens it has draws the numbers it would have drawn (SPEC 2.3).
    """
    digest = blake2b(seed.to_bytes(16, "little", signed=True), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def sample(logits_SV: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Ids (S) and the log-probability of each under the distribution it was drawn from (float32).

    That is after temperature, top-k and top-p, in this order, each on what the one before left.
    Greedy rows are drawn from a point mass, so theirs is 0. One that is no distribution gives NaN.
    """
    greedy = draws.temperature == 0
    # In float64 where the model is, otherwise float32 whatever the model's type.
    dtype = torch.promote_types(logits_SV.dtype, torch.float32)
    heat = torch.where(greedy, 1.0, draws.temperature).to(dtype)[:, None]
    scaled_SV = logits_SV.to(dtype, copy=True).div_(heat)
    if draws.is_cut:
        scaled_SV.masked_fill_(~_kept(scaled_SV, draws), -torch.inf)
    highest_S = scaled_SV.amax(dim=-1)
    # Likelihoods relative to the highest: one pass of exponentials gives draw and sum alike.
    ids, total_S = _drawn((scaled_SV - highest_S[:, None]).exp_(), draws.uniform)
    logprobs = scaled_SV.gather(1, ids[:, None])[:, 0] - highest_S - total_S.log().to(dtype)
    if draws.is_greedy:
        ids = torch.where(greedy, scaled_SV.argmax(dim=-1), ids)
        nothing = torch.where(highest_S.isfinite(), 0.0, torch.nan).to(dtype)
        logprobs = torch.where(greedy, nothing, logprobs)
    return ids, logprobs


def _kept(scaled_SV: Tensor, draws: Draws) -> Tensor:
    """Which tokens top-k and top-p leave; of equally likely ones the lower id comes first."""
    sorted_SV, order_SV = scaled_SV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(sorted_SV.shape[1], device=sorted_SV.device)
    among_SV = rank_V < draws.top_k[:, None]
    probs_SV = torch.softmax(
        sorted_SV.masked_fill(~among_SV, -torch.inf), dim=-1, dtype=torch.float64
    )
    # A token stays as long as those before it do not reach top_p; so the first always does.
    before_SV = probs_SV.cumsum(dim=-1) - probs_SV
    among_SV &= (before_SV < draws.top_p[:, None]) | (draws.top_p[:, None] == 1)
    return torch.zeros_like(among_SV).scatter_(1, order_SV, among_SV)


def _drawn(weights_SV: Tensor, uniform_S: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of each row passes its share of the whole, and the whole.

    First over the sums of stretches, then inside one: a running sum over a whole vocabulary would
    be long, and in parallel not even monotonic.
    """
    rows, tokens = weights_SV.shape
    if tokens % STRETCH:
        weights_SV = F.pad(weights_SV, (0, -tokens % STRETCH))
    stretches_SNC = weights_SV.view(rows, -1, STRETCH)
    sums_SN = stretches_SNC.sum(dim=-1).to(torch.float64).cumsum(dim=-1)
    target_S1 = uniform_S[:, None] * sums_SN[:, -1:]
    stretch_S1 = _first_above(sums_SN, target_S1)
    before_S1 = torch.where(stretch_S1 > 0, sums_SN.gather(1, (stretch_S1 - 1).clamp(min=0)), 0.0)
    row = torch.arange(rows, device=weights_SV.device)
    inside_SC = stretches_SNC[row, stretch_S1[:, 0]].to(torch.float64).cumsum(dim=-1)
    # Rounding may put the target past the last token of its stretch: then it is the last likely.
    rest_S1 = torch.minimum((target_S1 - before_S1).clamp(min=0), _below(inside_SC))
    inside_S1 = _first_above(inside_SC, rest_S1)
    return (stretch_S1 * STRETCH + inside_S1)[:, 0].clamp(max=tokens - 1), sums_SN[:, -1]


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """Per row the first place whose sum is greater than the target, (S, 1)."""
    return (sums <= target).sum(dim=-1, keepdim=True).clamp(max=sums.shape[-1] - 1)


def _below(sums: Tensor) -> Tensor:
    """The greatest number below each row's last sum, (S, 1)."""
    return torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))
