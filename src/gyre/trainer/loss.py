"""The loss of a step and its derivative by every target's log-probability (SPEC 8.1, 8.2).

Everything is float64 on the CPU, also for log-probabilities on a device, so that the same
numbers give the same update everywhere. Sums of log-ratios are rounded once, so that no order of
targets changes a pack's sum, and no order of packs their total. M is the targets of one pack.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, log

import torch
from torch import Tensor

from gyre.config.sections import LossConfig
from gyre.types.errors import InternalError, NotFinite
from gyre.types.training import Measures as Measures
from gyre.types.training import Score, Share

GRPO = LossConfig(kind="grpo")
GSPO = LossConfig(kind="gspo")
"""The bounds their authors use."""
MOST_LOG_RATIO = 600.0
"""In measures: sums of such ratios over any number of targets are far from the largest float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """One pack's part of the loss of a batch."""

    loss: float
    gradient: Tensor
    """M: derivative of the loss by each log-probability, in their type and on their device."""
    has_gradient: bool
    """Whether any of it is not zero; otherwise a backward pass would add nothing."""
    log_ratios: tuple[float | None, ...]
    """Per share of the claim: log s_i; None where it has no targets."""
    measures: Measures


def log_ratio_sums(
    logprobs: Tensor, behaviour: Tensor, owners: Tensor, shares: Sequence[Share]
) -> tuple[Score, ...]:
    """Per share: sum and count of log rho over the targets of one pack; raises NotFinite."""
    ours, theirs, owner = _checked(logprobs, behaviour, owners, shares)
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=len(shares)).tolist()
    parts = torch.split((ours - theirs)[order], counts)
    return tuple(
        Score(sum_log_ratio=_sum(part), count=count)
        for part, count in zip(parts, counts, strict=True)
    )


def add_scores(packs: Sequence[Sequence[Score]]) -> tuple[Score, ...]:
    """Per share: the scores of a claim's packs added up, in any order with one result."""
    return tuple(
        Score(
            sum_log_ratio=fsum(one.sum_log_ratio for one in parts),
            count=sum(one.count for one in parts),
        )
        for parts in zip(*packs, strict=True)
    )


def is_kept(share: Share, score: Score, section: LossConfig) -> bool:
    """Whether the share as a whole may give gradient: m_i of SPEC 8.2.

    GRPO clips target by target, so there every share is kept.
    """
    if section.kind == "grpo":
        return True
    mean, advantage = (
        torch.tensor([one], dtype=torch.float64) for one in (_mean(score) or 0.0, share.advantage)
    )
    return not bool(_clipped(mean, advantage, section))


def loss_and_gradient(
    logprobs: Tensor,
    behaviour: Tensor,
    owners: Tensor,
    *,
    shares: Sequence[Share],
    scores: Sequence[Score],
    num_executions: int,
    section: LossConfig,
) -> LossResult:
    """A pack's part of the batch loss, and its derivative; raises NotFinite.

    `owners` says whose share each target is; `scores` are over all packs that hold targets of a
    share; `num_executions` is B*N, those without tokens included. A target's weight is 1/(L_i*B*N).

    "gyre" is SPEC 8.2. "grpo" is the clipped surrogate of DeepSeekMath target by target, "gspo"
    that of Qwen with one ratio per sequence, both without KL; the policy that sampled is the old
    one. Their sequence is a share: a trajectory where packing made each a share (SPEC 8.4), else
    all targets of the execution. Each sequence weighs 1/(B*N), so an execution weighs as much as
    it has sequences.
    """
    ours, theirs, owner = _checked(logprobs, behaviour, owners, shares)
    _check_scores(owner, shares, scores)
    advantage, length, log_sequence = (
        torch.tensor(column, dtype=torch.float64)[owner]
        for column in (
            [one.advantage for one in shares],
            [one.num_targets for one in shares],
            [_mean(one) or 0.0 for one in scores],
        )
    )
    log_ratio = ours - theirs
    log_bounded = log_ratio if section.kind == "grpo" else log_sequence
    clipped = _clipped(log_bounded, advantage, section)
    if section.kind == "gyre":
        value, slope, capped = _gyre(ours, log_ratio, advantage, clipped, section)
    else:
        value, slope = _surrogate(log_bounded, advantage, clipped, section)
        capped = torch.zeros_like(clipped)
    weight = 1 / (length * num_executions)
    loss, gradient = weight * value, (weight * slope).to(logprobs.dtype)
    _require_finite("loss", loss, owner, shares)
    _require_finite("gradient", gradient, owner, shares)
    return LossResult(
        loss=_sum(loss),
        gradient=gradient.to(logprobs.device),
        has_gradient=bool(gradient.any()),
        log_ratios=tuple(_mean(one) for one in scores),
        measures=_measures(advantage, clipped, capped, log_ratio),
    )


def clipped_loss(
    owners: Sequence[int],
    *,
    shares: Sequence[Share],
    num_executions: int,
    section: LossConfig,
) -> float:
    """The loss of a pack whose shares are all beyond their bound, or without advantage."""
    if section.kind != "gspo":
        return 0.0
    low, high = section.bounds
    parts = []
    for owner in owners:
        share = shares[owner]
        bound = high if share.advantage > 0 else low
        parts.append(-share.advantage * bound / (share.num_targets * num_executions))
    return fsum(parts)


def _clipped(log_ratio: Tensor, advantage: Tensor, section: LossConfig) -> Tensor:
    """Where a ratio is beyond the bound its advantage drives it to; exactly at a bound it is not.

    Compared in logarithms, because there a mean of log-ratios is what it is, unrounded by exp.
    """
    low, high = section.bounds
    above = (advantage > 0) & (log_ratio > log(high))
    below = (advantage < 0) & (log_ratio < log(low))
    return above | below


def _gyre(
    logprobs: Tensor,
    log_ratio: Tensor,
    advantage: Tensor,
    clipped: Tensor,
    section: LossConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of each target, its derivative, and where the loss is over its cap (SPEC 8.2)."""
    ratio = torch.exp(log_ratio).clamp(max=section.ratio_cap)
    slope = torch.where(clipped, 0.0, -ratio * advantage)
    value = slope * logprobs
    capped = value > section.loss_cap
    return value.clamp(max=section.loss_cap), torch.where(capped, 0.0, slope), capped


def _surrogate(
    log_ratio: Tensor, advantage: Tensor, clipped: Tensor, section: LossConfig
) -> tuple[Tensor, Tensor]:
    """The lesser of ratio and bounded ratio times the advantage, negated, and its derivative."""
    ratio = torch.exp(log_ratio)
    low, high = section.bounds
    bounds = torch.full_like(ratio, high).where(advantage > 0, low)
    value = -advantage * torch.where(clipped, bounds, ratio)
    return value, torch.where(clipped, 0.0, -advantage * ratio)


def _measures(advantage: Tensor, clipped: Tensor, capped: Tensor, log_ratio: Tensor) -> Measures:
    raised, lowered = advantage > 0, advantage < 0
    return Measures(
        num_targets=len(log_ratio),
        num_capped=int(capped.sum()),
        num_raised=int(raised.sum()),
        num_raised_clipped=int((raised & clipped).sum()),
        num_lowered=int(lowered.sum()),
        num_lowered_clipped=int((lowered & clipped).sum()),
        sum_ratio=sum_of_ratios(log_ratio),
        max_gap=float(log_ratio.abs().max()) if len(log_ratio) else None,
    )


def sum_of_ratios(log_ratios: Tensor) -> float:
    """Of targets, as measures have it: finite for any sample, so that a report can hold it."""
    return float(torch.exp(log_ratios.clamp(max=MOST_LOG_RATIO)).sum())


def total(parts: Iterable[Measures]) -> Measures:
    """The measures of several packs as of one."""
    many = list(parts)
    gaps = [one.max_gap for one in many if one.max_gap is not None]
    return Measures(
        num_targets=sum(one.num_targets for one in many),
        num_capped=sum(one.num_capped for one in many),
        num_raised=sum(one.num_raised for one in many),
        num_raised_clipped=sum(one.num_raised_clipped for one in many),
        num_lowered=sum(one.num_lowered for one in many),
        num_lowered_clipped=sum(one.num_lowered_clipped for one in many),
        sum_ratio=sum(one.sum_ratio for one in many),
        max_gap=max(gaps) if gaps else None,
    )


def _checked(
    logprobs: Tensor, behaviour: Tensor, owners: Tensor, shares: Sequence[Share]
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities now and when sampled, and whose they are, on the CPU, finite."""
    ours = logprobs.detach().to("cpu", torch.float64)
    theirs = behaviour.detach().to("cpu", torch.float64)
    owner = owners.detach().to("cpu", torch.int64)
    if not ours.shape == theirs.shape == owner.shape == (len(owner),):
        shapes = [tuple(one.shape) for one in (ours, theirs, owner)]
        raise InternalError(f"objective: one entry per target, and not the shapes {shapes}")
    _require_finite("log-probability", ours, owner, shares)
    _require_finite("log-probability when sampled", theirs, owner, shares)
    return ours, theirs, owner


def _check_scores(owner: Tensor, shares: Sequence[Share], scores: Sequence[Score]) -> None:
    """Each execution with targets here has a finite score over all of its targets."""
    if len(shares) != len(scores):
        raise InternalError(f"objective: {len(shares)} shares have {len(scores)} scores")
    for index in sorted(set(owner.tolist())):
        share, score = shares[index], scores[index]
        if score.count != share.num_targets:
            found = f"{score.count} of {share.num_targets} targets are scored"
            raise InternalError(f"objective of execution {share.execution}: {found}")
        if not isfinite(score.sum_log_ratio):
            found = f"its sum of log-ratios is {score.sum_log_ratio}"
            raise NotFinite(f"objective of execution {share.execution}: {found}", retryable=False)


def _require_finite(what: str, values: Tensor, owner: Tensor, shares: Sequence[Share]) -> None:
    bad = torch.nonzero(~torch.isfinite(values)).flatten().tolist()
    if bad:
        name, value = shares[int(owner[bad[0]])].execution, float(values[bad[0]])
        found = f"{what} of {len(bad)} targets is no number, the first is {value}"
        raise NotFinite(f"objective of execution {name}: {found}", retryable=False)


def _mean(score: Score) -> float | None:
    """log s_i; None without targets."""
    return score.sum_log_ratio / score.count if score.count else None


def _sum(values: Tensor) -> float:
    return fsum(values.tolist())
