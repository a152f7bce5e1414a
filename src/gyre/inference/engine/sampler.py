"""Logits to tokens: each row drawn by one number of its own, with its log-probability.

Shapes: S rows, V tokens of the vocabulary, N stretches of it, C tokens of one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre.types.sampling import SamplingParams

STRETCH = 256
"""Tokens that are summed before they are looked at one by one."""

Way = tuple[float, float, float]
"""Temperature, of which 0 takes the most likely token; top_p, of which 1 keeps all; and top_k, of
which the size of the vocabulary keeps all."""


def way_of(sampling: SamplingParams, vocabulary: int) -> Way:
    top_k = vocabulary if sampling.top_k is None else min(sampling.top_k, vocabulary)
    return sampling.temperature, sampling.top_p, top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampling:
    """How each of S rows is drawn."""

    numbers: Tensor
    """(S, 4), float64: each row's way, and the number in [0, 1) that draws it; one tensor, so that
    one copy brings it to a device."""
    is_cut: bool
    """Whether any row has a top_p or top_k that leaves something out."""
    is_greedy: bool
    """Whether any row has temperature 0."""
    is_heated: bool
    """Whether any row has another temperature than 0 and 1."""

    @classmethod
    def of(
        cls, ways: Sequence[Way], uniform: NDArray[np.float64], vocabulary: int, *, pinned: bool
    ) -> Self:
        """On the host, in memory that a device copies from by itself if it is pinned."""
        numbers = torch.empty((len(ways), 4), dtype=torch.float64, pin_memory=pinned)
        rows = numbers.numpy()
        rows[:, :3] = ways
        rows[:, 3] = uniform
        heat = {way[0] for way in ways}
        return cls(
            numbers=numbers,
            is_cut=bool((rows[:, 1] < 1).any() or (rows[:, 2] < vocabulary).any()),
            is_greedy=0 in heat,
            is_heated=not heat <= {0, 1},
        )

    def on(self, device: torch.device) -> Self:
        """The same on the device, by a copy that does not wait for what it computes."""
        return replace(self, numbers=self.numbers.to(device, non_blocking=True))


def seed_of(engine_seed: int, ask: str) -> int:
    """The seed of an ask that names none: of its own, and the same when it is asked again."""
    text = f"{engine_seed}/{ask}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def uniforms(seeds: Iterable[int]) -> NDArray[np.float64]:
    """For each seed a number in [0, 1) that depends on it alone.

    Token n of a call uses its seed + n, so a call that is continued elsewhere with its seed moved
    on by the tokens it has draws the numbers it would have drawn (SPEC 2.3).
    """
    digests = [
        blake2b(seed.to_bytes(16, "little", signed=True), digest_size=8).digest() for seed in seeds
    ]
    return (np.frombuffer(b"".join(digests), "<u8") >> 11).astype(np.float64) * 2.0**-53


def sample(logits_SV: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
    """Ids (S) and the log-probability of each under the distribution it was drawn from (float32).

    That is after temperature, top-k and top-p, in this order, each on what the one before left.
    Greedy rows are drawn from a point mass, so theirs is 0. One that is no distribution gives NaN.
    """
    temperature_S, top_p_S, top_k_S, uniform_S = draws.numbers.unbind(dim=1)
    # In float64 where the model is, otherwise float32 for any type of the model.
    dtype = torch.promote_types(logits_SV.dtype, torch.float32)
    scaled_SV = logits_SV
    if draws.is_heated or draws.is_cut:
        heat_S = torch.where(temperature_S == 0, 1.0, temperature_S)
        scaled_SV = logits_SV.to(dtype, copy=True).div_(heat_S.to(dtype)[:, None])
    if draws.is_cut:
        scaled_SV.masked_fill_(~_kept(scaled_SV, top_p_S, top_k_S), -torch.inf)
    # As few passes over the vocabulary as can be: on a GPU they are what sampling costs.
    probs_SV = torch.softmax(scaled_SV, dim=-1, dtype=dtype)
    ids, total_S = draw(
        _sums(probs_SV), lambda at: probs_SV.gather(1, at), uniform_S, probs_SV.shape[1]
    )
    logprobs = probs_SV.gather(1, ids[:, None])[:, 0].log() - total_S.log().to(dtype)
    return chosen(ids, logprobs, total_S, scaled_SV, draws)


def chosen(
    ids: Tensor, logprobs: Tensor, total_S: Tensor, logits_SV: Tensor, draws: BatchSampling
) -> tuple[Tensor, Tensor]:
    """The ids that were drawn, or of greedy rows the most likely, as from a point mass."""
    if not draws.is_greedy:
        return ids, logprobs
    greedy_S = draws.numbers[:, 0] == 0
    nothing = torch.where(total_S.isfinite(), 0.0, torch.nan).to(logprobs.dtype)
    ids = torch.where(greedy_S, logits_SV.argmax(dim=-1), ids)
    return ids, torch.where(greedy_S, nothing, logprobs)


def sample_packed(logits_SV: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
    """What `sample` gives, packed."""
    return packed(*sample(logits_SV, draws))


def packed(ids: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (S), and (S, 2) of them and their log-probabilities, for one copy to bring both back.

    In float64, which holds the ones and the others exactly.
    """
    return ids, torch.stack([ids.double(), logprobs.double()], dim=1)


def draw(
    sums_SN: Tensor, weights_at: Callable[[Tensor], Tensor], uniform_S: Tensor, tokens: int
) -> tuple[Tensor, Tensor]:
    """Where the running sum of each row's weights passes its share of the whole, and the whole.

    Given are the sums of stretches, and what gives the weights of some tokens (S, C). First over
    those, then inside one: a running sum over a whole vocabulary would be long, and in parallel
    not even monotonic.
    """
    sums_SN = sums_SN.to(torch.float64).cumsum(dim=-1)
    target_S1 = uniform_S[:, None] * sums_SN[:, -1:]
    stretch_S1 = _first_above(sums_SN, target_S1)
    before_S1 = torch.where(stretch_S1 > 0, sums_SN.gather(1, (stretch_S1 - 1).clamp(min=0)), 0.0)
    place_SC = stretch_S1 * STRETCH + torch.arange(STRETCH, device=sums_SN.device)
    there_SC = weights_at(place_SC.clamp(max=tokens - 1))
    inside_SC = torch.where(place_SC < tokens, there_SC, 0.0).to(torch.float64).cumsum(dim=-1)
    # Rounding may put the target past the last token of its stretch: then it is the last likely.
    rest_S1 = torch.minimum((target_S1 - before_S1).clamp(min=0), _below(inside_SC))
    inside_S1 = _first_above(inside_SC, rest_S1)
    return (stretch_S1 * STRETCH + inside_S1)[:, 0].clamp(max=tokens - 1), sums_SN[:, -1]


def _kept(scaled_SV: Tensor, top_p_S: Tensor, top_k_S: Tensor) -> Tensor:
    """Which tokens top-k and top-p leave; of equally likely ones the lower id comes first."""
    sorted_SV, order_SV = scaled_SV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(sorted_SV.shape[1], device=sorted_SV.device)
    among_SV = rank_V < top_k_S[:, None]
    probs_SV = torch.softmax(
        sorted_SV.masked_fill(~among_SV, -torch.inf), dim=-1, dtype=torch.float64
    )
    # A token stays as long as those before it do not reach top_p; so the first always does.
    before_SV = probs_SV.cumsum(dim=-1) - probs_SV
    among_SV &= (before_SV < top_p_S[:, None]) | (top_p_S[:, None] == 1)
    return torch.zeros_like(among_SV).scatter_(1, order_SV, among_SV)


def _sums(weights_SV: Tensor) -> Tensor:
    """Of stretches, (S, N); the last may be shorter."""
    tokens = weights_SV.shape[1]
    even_SV, rest_SV = weights_SV.tensor_split([tokens // STRETCH * STRETCH], dim=1)
    parts = [even_SV.reshape(len(even_SV), tokens // STRETCH, STRETCH).sum(dim=-1)]
    if rest_SV.shape[1]:
        parts.append(rest_SV.sum(dim=-1, keepdim=True))
    return torch.cat(parts, dim=1)


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """Per row the first place whose sum is greater than the target, (S, 1)."""
    return (sums <= target).sum(dim=-1, keepdim=True).clamp(max=sums.shape[-1] - 1)


def _below(sums: Tensor) -> Tensor:
    """The greatest number below each row's last sum, (S, 1)."""
    return torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))
