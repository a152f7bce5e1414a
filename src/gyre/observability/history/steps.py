"""Updates of a run, and what was measured with them: objective, staleness, publications."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from gyre.observability.history.cells import at_of
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import Identity
from gyre.scheduler.scheduler import Scheduler
from gyre.types.run_events import (
    CheckpointMade,
    ClaimTrained,
    EvaluationRound,
    GroupPacked,
    RewardGiven,
    StepMade,
    WeightsPublished,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTotals:
    """Measures of the loss, summed over the claims of a step."""

    num_targets: int
    mean_ratio: float | None
    capped: float | None
    """Part of the targets whose loss is at its cap."""
    raised_clipped: float | None
    """Part of the targets with a positive advantage."""
    lowered_clipped: float | None
    """Part of those with a negative one."""
    clipped: float | None
    """Part of all targets."""
    max_gap: float | None
    """Largest |log-probability now - when sampled|."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTotals:
    """Trajectories, tokens and targets, summed over the groups of a step."""

    trajectories: int
    tokens: int
    row_tokens: int
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One update."""

    number: int
    """From 1; the version it led to."""
    at_s: float
    took_s: float
    """Since the step before, or since the start."""
    ages: tuple[tuple[int, int], ...]
    """(staleness, groups), the lowest first."""
    num_training: int
    """Cells in training when it was taken."""
    num_void: int
    identity: Identity
    made: StepMade | None
    """None in a journal without run events."""
    packed: PackTotals | None
    objective: LossTotals | None
    claim_s: float | None
    """Time that cells spent on its claims."""

    @property
    def staleness(self) -> float | None:
        """Mean over its groups."""
        groups = sum(many for _, many in self.ages)
        return sum(age * many for age, many in self.ages) / groups if groups else None

    @property
    def reward(self) -> float | None:
        return None if self.made is None else self.made.reward


Fact = TypeVar("Fact")


class TimedFact(NamedTuple, Generic[Fact]):
    """A fact with its time."""

    at_s: float
    fact: Fact


class StepHistory:
    """All updates, in order."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self._shape = shape
        self.rows: list[StepRecord] = []
        self.publications: list[TimedFact[WeightsPublished]] = []
        self.rounds: list[TimedFact[EvaluationRound]] = []
        """Of held-out evaluation."""
        self.checkpoints: list[TimedFact[CheckpointMade]] = []
        self.scores: dict[tuple[int, int], float] = {}
        """Rewards given since the last update, by group and member."""
        self._seen: set[tuple[str, int]] = set()
        self._made: StepMade | None = None
        self._packed: dict[int, GroupPacked] = {}
        self._claims: dict[int, ClaimTrained] = {}
        self._ages: Counter[int] = Counter()

    def record_fact(self, now: float, fact: object) -> None:
        match fact:
            case StepMade():
                self._made = fact
            case GroupPacked(group=group):
                self._packed[group] = fact
            case ClaimTrained(claim=claim):
                self._claims[claim] = fact
            case RewardGiven(group=group, member=member, score=score) if score is not None:
                self.scores[group, member] = score
            case WeightsPublished(version=version) if ("weights", version) not in self._seen:
                self._seen.add(("weights", version))
                self.publications.append(TimedFact(now, fact))
            case CheckpointMade(version=version) if ("checkpoint", version) not in self._seen:
                self._seen.add(("checkpoint", version))
                self.checkpoints.append(TimedFact(now, fact))
            case EvaluationRound(version=version) if ("round", version) not in self._seen:
                self._seen.add(("round", version))
                self.rounds.append(TimedFact(now, fact))
            case _:
                pass

    def taken(self, now: float, scheduler: Scheduler, *, num_training: int, num_void: int) -> None:
        """An update was taken; run events about it came before."""
        version = scheduler.burst.version
        ages = Counter(scheduler.staleness.histogram)
        made = self._made if self._made is not None and self._made.step == version - 1 else None
        packed = [group for group in self._packed.values() if group.step == version - 1]
        claims = [claim for claim in self._claims.values() if claim.step == version - 1]
        self.rows.append(
            StepRecord(
                number=version,
                at_s=now,
                took_s=now - (self.rows[-1].at_s if self.rows else 0.0),
                ages=tuple(sorted((ages - self._ages).items())),
                num_training=num_training,
                num_void=num_void,
                identity=scheduler.staleness.identity(version),
                made=made,
                packed=_packed(packed) if packed else None,
                objective=loss_totals(claims) if claims else None,
                claim_s=sum(claim.seconds for claim in claims) if claims else None,
            )
        )
        self._ages = ages
        self._packed.clear()
        self._claims.clear()
        self.scores.clear()

    @property
    def rewards(self) -> list[tuple[int, float]]:
        """Of updates that have one, by their numbers."""
        return [(row.number, row.reward) for row in self.rows if row.reward is not None]

    def weights_of(self, version: int) -> WeightsPublished | None:
        """What the publication of a version took, where that was recorded."""
        found = (row.fact for row in reversed(self.publications) if row.fact.version == version)
        return next(found, None)

    def left_s(self, at_s: float) -> float | None:
        """From then until the last step, if all that are left take the mean time; None if that is
        unknown."""
        taken = bisect_right(self.rows, at_s, key=at_of)
        if self._shape.steps is None or not taken:
            return None
        last_s = self.rows[taken - 1].at_s
        step_s = last_s / taken
        # A step that takes longer than the mean is taken to be about to end.
        return max(0.0, (self._shape.steps - taken) * step_s - min(at_s - last_s, step_s))

    def until(self, at_s: float) -> list[StepRecord]:
        return self.rows[: bisect_right(self.rows, at_s, key=at_of)]


def until(rows: list[TimedFact[Fact]], at_s: float) -> list[TimedFact[Fact]]:
    """Those up to a moment."""
    return rows[: bisect_right(rows, at_s, key=at_of)]


def _packed(groups: list[GroupPacked]) -> PackTotals:
    return PackTotals(
        trajectories=sum(group.num_trajectories for group in groups),
        tokens=sum(group.num_tokens for group in groups),
        row_tokens=sum(group.row_tokens for group in groups),
        targets=sum(group.num_targets for group in groups),
    )


def loss_totals(claims: Iterable[ClaimTrained]) -> LossTotals:
    measures = [claim.measures for claim in claims]
    targets = sum(measure.num_targets for measure in measures)
    raised = sum(measure.num_raised for measure in measures)
    lowered = sum(measure.num_lowered for measure in measures)
    clipped = sum(measure.num_raised_clipped + measure.num_lowered_clipped for measure in measures)
    gaps = [measure.max_gap for measure in measures if measure.max_gap is not None]
    return LossTotals(
        num_targets=targets,
        mean_ratio=part_of(sum(measure.sum_ratio for measure in measures), targets),
        capped=part_of(sum(measure.num_capped for measure in measures), targets),
        raised_clipped=part_of(sum(measure.num_raised_clipped for measure in measures), raised),
        lowered_clipped=part_of(sum(measure.num_lowered_clipped for measure in measures), lowered),
        clipped=part_of(clipped, targets),
        max_gap=max(gaps, default=None),
    )


def part_of(part: float, whole: int) -> float | None:
    """None of nothing."""
    return part / whole if whole else None
