"""What a trainer says of the work it did."""

from dataclasses import dataclass

from gyre.types.packs import Score


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

    @property
    def capped_fraction(self) -> float | None:
        return _fraction(self.num_capped, self.num_targets)

    @property
    def raised_clipped_fraction(self) -> float | None:
        return _fraction(self.num_raised_clipped, self.num_raised)

    @property
    def lowered_clipped_fraction(self) -> float | None:
        return _fraction(self.num_lowered_clipped, self.num_lowered)

    @property
    def mean_ratio(self) -> float | None:
        return _fraction(self.sum_ratio, self.num_targets)


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

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_tokens / self.total_s if self.total_s else None

    @property
    def padding_fraction(self) -> float | None:
        computed = self.num_tokens + self.num_padding
        return self.num_padding / computed if computed else None

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


def _fraction(part: float, whole: int) -> float | None:
    return part / whole if whole else None
