"""Packs, claims, scores, and the reports a trainer returns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre.types.ids import CallId, ExecutionId

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One micro-step: T tokens in depth-first order, rows and trees alike, with M targets.

    Token k is visible to token q iff k <= q < tout[k]. A single row has tout = T everywhere; of
    rows laid end to end each has its own end; in a tree a prefix stands once, before what follows.
    """

    ids: Ints
    """T."""
    positions: Ints
    """T: distance from the beginning of the token's own path."""
    tout: Ints
    """T: index just after the token's subtree."""
    predictors: Ints
    """M: index of the token after which the target was sampled; several targets may share one."""
    labels: Ints
    """M: the sampled ids."""
    behaviour: Floats
    """M: log-probability of each when it was sampled."""
    shares: Ints
    """M: which of the claim's shares each target belongs to."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_targets(self) -> int:
        return len(self.labels)

    @property
    def num_pairs(self) -> int:
        """Pairs of a token and a token it sees, itself included; attention's work follows them."""
        return int(self.positions.sum(dtype=np.int64)) + len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """An execution as the objective sees it."""

    execution: ExecutionId
    advantage: float
    num_targets: int
    """L_i: targets of the whole execution, over all packs that hold some (SPEC 8.2)."""
    trajectory: CallId | None = None
    """The leaf, where each trajectory is a share of its own (SPEC 8.4); then L_i is of it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Micro-steps claimed together; they hold every target of their executions (SPEC 3.2)."""

    shares: tuple[Share, ...]
    packs: tuple[Pack, ...]
    oversize: bool = False
    """Whether it is over the claim budget: one execution, scored before any backward (SPEC 8.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What forward passes found of one execution's ratio, to be summed over packs (SPEC 8.3)."""

    sum_log_ratio: float
    """Over targets scored so far, in float64."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What one or more packs show of the objective; `total` adds them up."""

    num_targets: int
    num_capped: int
    """Targets whose loss is at its cap, so that they give no gradient."""
    num_raised: int
    """Targets with a positive advantage."""
    num_raised_clipped: int
    num_lowered: int
    """Targets with a negative advantage."""
    num_lowered_clipped: int
    sum_ratio: float
    max_gap: float | None
    """Largest |log-probability now - when sampled|; None without targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much was computed and how long it took."""

    num_packs: int
    num_skipped: int
    """Packs without a backward pass, because none of their targets gives a gradient."""
    num_tokens: int
    num_padding: int
    num_targets: int
    model_flops: float
    """Of forward and backward passes; what is computed a second time does not count."""
    forward_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s

    def utilisation(self, peak_flops_per_s: float) -> float | None:
        """Fraction of what the device could compute in this time (MFU)."""
        return self.model_flops / (peak_flops_per_s * self.total_s) if self.total_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReport:
    """One claim whose gradient is in the sum."""

    loss: float
    """Its part of the batch's loss."""
    scores: tuple[Score, ...]
    """Per share."""
    measures: Measures
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One update of the weights."""

    version: int
    """Of the weights it made."""
    gradient_norm: float
    """Before clipping."""
    is_clipped: bool
    lr: float
    step_s: float
