"""A trainer without a network: one logit per token, the real objective, failures on demand."""

from collections import Counter, deque
from collections.abc import Sequence
from math import exp, fsum, isfinite, log, sqrt
from typing import Literal

from gyre.config.sections import LossConfig, OptimizerConfig
from gyre.types.errors import CellError, InternalError, NotFinite, OutOfMemory
from gyre.types.training import Claim, ClaimReport, Measures, Pack, Score, Share, StepReport, Work

Fault = Literal["out of memory", "not finite", "lost"]
"""What goes wrong with a call: no memory, a value that is no number, or the cell is gone."""

OBJECTIVE = LossConfig()


class ScriptedTrainer:
    """A Trainer over a softmax that looks at no context, in Python's own numbers.

    A sum is rounded once, when it is used, so that no order or split of claims changes a bit.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 64,
        optimizer: OptimizerConfig | None = None,
        version: int = 0,
    ) -> None:
        """Without an optimizer it is a satellite's; a step is plain descent, clipped."""
        self.version = version
        self.logits = [0.0] * vocabulary
        self.next_faults: deque[Fault | None] = deque()
        """What goes wrong with the next calls that compute or restore, one each."""
        self.trained: list[Claim] = []
        """What the sum consists of."""
        self._optimizer = optimizer
        self._parts: list[list[float]] = []
        self._is_resting = False

    @property
    def gradient(self) -> list[float]:
        """The sum, by token."""
        zeros = [0.0] * len(self.logits)
        return [fsum(column) for column in zip(zeros, *self._parts, strict=True)]

    def score(self, claim: Claim) -> tuple[Score, ...]:
        self._begin("scoring a claim")
        self._check(claim)
        return self._scores(claim)

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        self._begin("training on a claim")
        self._check(claim)
        given = self._scores(claim) if scores is None else tuple(scores)
        found = _Weighed(self._logprobs(), claim, given, num_executions)
        if not all(map(isfinite, (*found.losses, *found.gradient))):
            raise NotFinite("training on a claim: a loss or gradient is no number", retryable=False)
        self._parts.append(found.gradient)
        self.trained.append(claim)
        return ClaimReport(
            loss=fsum(found.losses), scores=given, measures=found.measures(), work=_work(claim)
        )

    def step(self) -> StepReport:
        self._begin("a step")
        section = self._optimizer
        if section is None:
            raise CellError("this trainer has no optimizer: the core's has", retryable=False)
        gradient = self.gradient
        norm = sqrt(fsum(value * value for value in gradient))
        scale = section.max_norm / norm if norm > section.max_norm else 1.0
        self.logits = [
            logit - section.lr * scale * slope
            for logit, slope in zip(self.logits, gradient, strict=True)
        ]
        self.clear()
        self.version += 1
        return StepReport(
            version=self.version,
            gradient_norm=norm,
            is_clipped=norm > section.max_norm,
            lr=section.lr,
            step_s=0.0,
        )

    def clear(self) -> None:
        self._parts.clear()
        self.trained.clear()

    def offload(self, *, weights: bool = False) -> None:
        self._is_resting = True

    def reload(self) -> None:
        if self._is_resting:
            self._fail("restoring a trainer")
        self._is_resting = False

    def _begin(self, doing: str) -> None:
        if self._is_resting:
            raise CellError("the trainer rests: restore it first")
        self._fail(doing)

    def _fail(self, doing: str) -> None:
        match self.next_faults.popleft() if self.next_faults else None:
            case "out of memory":
                raise OutOfMemory(f"{doing}: no room, as was asked for")
            case "not finite":
                raise NotFinite(f"{doing}: no number, as was asked for", retryable=False)
            case "lost":
                raise CellError(f"{doing}: the cell is gone, as was asked for")
            case None:
                return

    def _check(self, claim: Claim) -> None:
        counts: Counter[int] = Counter()
        for pack in claim.packs:
            tokens = [*pack.ids.tolist(), *pack.labels.tolist()]
            if not all(0 <= token < len(self.logits) for token in tokens):
                raise _refusal(f"the vocabulary has {len(self.logits)}")
            if not all(map(isfinite, pack.behaviour.tolist())):
                raise _refusal("a number in behaviour is not a log-probability")
            counts.update(pack.shares.tolist())
        if counts.keys() - range(len(claim.shares)):
            raise _refusal(f"a target of share {max(counts)} of {len(claim.shares)}")
        for number, share in enumerate(claim.shares):
            if counts[number] != share.num_targets:
                held = f"{counts[number]} of the {share.num_targets} targets of {share.execution}"
                raise _refusal(f"it holds {held}")

    def _logprobs(self) -> list[float]:
        total = log(fsum(map(exp, self.logits)))
        return [logit - total for logit in self.logits]

    def _scores(self, claim: Claim) -> tuple[Score, ...]:
        logprobs = self._logprobs()
        gaps: list[list[float]] = [[] for _ in claim.shares]
        for label, sampled, owner in _targets(claim.packs):
            gaps[owner].append(logprobs[label] - sampled)
        return tuple(Score(sum_log_ratio=fsum(gap), count=len(gap)) for gap in gaps)


class _Weighed:
    """Losses of a claim's targets, and the gradient of their sum by token (SPEC 8.2)."""

    def __init__(
        self,
        logprobs: Sequence[float],
        claim: Claim,
        scores: Sequence[Score],
        num_executions: int,
    ) -> None:
        pairs = zip(claim.shares, scores, strict=True)
        clipped = [_is_clipped(share, score) for share, score in pairs]
        self.losses: list[float] = []
        self.gaps: list[float] = []
        self.counts: Counter[str] = Counter()
        slopes: list[list[float]] = [[] for _ in logprobs]
        for label, sampled, owner in _targets(claim.packs):
            share, now = claim.shares[owner], logprobs[label]
            ratio = min(exp(min(now - sampled, 700.0)), OBJECTIVE.ratio_cap)
            slope = 0.0 if clipped[owner] else -ratio * share.advantage
            weight = 1 / (share.num_targets * num_executions)
            capped = slope * now > OBJECTIVE.loss_cap
            self.losses.append(weight * (OBJECTIVE.loss_cap if capped else slope * now))
            slopes[label].append(0.0 if capped else weight * slope)
            self.gaps.append(now - sampled)
            sign = "raised" if share.advantage > 0 else "lowered"
            self.counts.update([sign] + ["capped"] * capped + [f"{sign} clipped"] * clipped[owner])
        of_label = [sum(values) for values in slopes]
        total = sum(of_label)
        self.gradient = [
            slope - exp(now) * total for slope, now in zip(of_label, logprobs, strict=True)
        ]

    def measures(self) -> Measures:
        return Measures(
            num_targets=len(self.gaps),
            num_capped=self.counts["capped"],
            num_raised=self.counts["raised"],
            num_raised_clipped=self.counts["raised clipped"],
            num_lowered=self.counts["lowered"],
            num_lowered_clipped=self.counts["lowered clipped"],
            sum_ratio=fsum(exp(min(gap, 700.0)) for gap in self.gaps),
            max_gap=max(map(abs, self.gaps), default=None),
        )


def _is_clipped(share: Share, score: Score) -> bool:
    if score.count != share.num_targets:
        found = f"{score.count} of {share.num_targets} targets are scored"
        raise InternalError(f"execution {share.execution}: {found}")
    if not isfinite(score.sum_log_ratio):
        raise NotFinite(f"execution {share.execution}: its score is no number", retryable=False)
    low, high = OBJECTIVE.bounds
    ratio = score.sum_log_ratio / max(score.count, 1)
    return (share.advantage > 0 and ratio > log(high)) or (share.advantage < 0 and ratio < log(low))


def _targets(packs: Sequence[Pack]) -> list[tuple[int, float, int]]:
    """Label, log-probability when sampled, and share of each."""
    return [
        one
        for pack in packs
        for one in zip(
            pack.labels.tolist(), pack.behaviour.tolist(), pack.shares.tolist(), strict=True
        )
    ]


def _work(claim: Claim) -> Work:
    return Work(
        num_packs=len(claim.packs),
        num_skipped=0,
        num_tokens=sum(pack.num_tokens for pack in claim.packs),
        num_padding=0,
        num_targets=sum(pack.num_targets for pack in claim.packs),
        model_flops=0.0,
        forward_s=0.0,
        backward_s=0.0,
    )


def _refusal(found: str) -> CellError:
    return CellError(f"cannot train on this claim: {found}", retryable=False)
