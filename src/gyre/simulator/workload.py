"""Made-up or recorded work: what executions take and cost, how they end, when a reward is there.

Rule 1: an execution's work depends on seed, group and member alone, so that two policies meet
the same work in any order in which they ask; drift then scales it by the step of admission.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, inf, isfinite, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np

from gyre.types.errors import ConfigError
from gyre.types.outcomes import Ending, Outcome

HOUR_S = 3600.0


class Durations(Protocol):
    """Hours of work in an execution, before drift and deadlines."""

    def hours(self, group: int, member: int, normal: float) -> float:
        """`normal` is standard normal and shared in part with the others of the group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """A distribution with a long tail."""

    log_mean: float
    """Mean of the logarithm of hours."""
    sigma: float

    def hours(self, group: int, member: int, normal: float) -> float:
        return exp(self.log_mean + self.sigma * normal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """A distribution read off a plot: linear between points."""

    points: tuple[tuple[float, float], ...]
    """(share of executions, hours they stay below), from share 0 to share 1."""

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1:
            raise ConfigError(f"quantiles: shares go from 0 to 1, not {shares}")
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(self.points)):
            raise ConfigError(f"quantiles: shares and hours increase, not {self.points}")

    def hours(self, group: int, member: int, normal: float) -> float:
        shares, hours = zip(*self.points, strict=True)
        return float(np.interp(NormalDist().cdf(normal), shares, hours))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedDurations:
    """Recorded durations, by group; they begin again when they are used up."""

    groups: tuple[tuple[float, ...], ...]
    """Hours."""

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise ConfigError("replayed durations: every group needs at least one")

    def hours(self, group: int, member: int, normal: float) -> float:
        members = self.groups[group % len(self.groups)]
        return members[member % len(members)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A factor on durations that goes from 1 to `to` in a straight line over some steps."""

    to: float = 1.0
    first_step: int = 1
    last_step: int = 1

    def __post_init__(self) -> None:
        if self.to <= 0 or self.last_step < self.first_step:
            raise ConfigError(f"drift to {self.to} over {self.first_step} to {self.last_step}")

    def factor(self, step: int) -> float:
        if step >= self.last_step:
            return self.to
        passed = max(0, step - self.first_step) / (self.last_step - self.first_step)
        return 1 + (self.to - 1) * passed


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDeadlines:
    """From launch, finite (SPEC 6.1)."""

    harness_h: float
    overall_h: float

    def __post_init__(self) -> None:
        if not 0 < self.harness_h <= self.overall_h < inf:
            found = f"harness {self.harness_h} h, overall {self.overall_h} h"
            raise ConfigError(f"deadlines: finite, the harness's first; found {found}")

    @property
    def harness_s(self) -> float:
        return self.harness_h * HOUR_S

    @property
    def overall_s(self) -> float:
        return self.overall_h * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardDurations:
    """How long a reward takes once the harness has ended."""

    mean_h: float = 0.0
    sigma: float = 0.0
    """Of the logarithm of hours; the mean stays."""
    stuck_queries: float = 0.0
    """Share of queries that are hard to evaluate."""
    stuck_within: float = 0.0
    """Share of their executions whose evaluation lasts until the overall deadline."""

    def __post_init__(self) -> None:
        _require_shares(stuck_queries=self.stuck_queries, stuck_within=self.stuck_within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Shares of what goes wrong."""

    crashed: float = 0.0
    """Of executions: they end somewhere in their work, and are assessed as they stand."""
    never_started: float = 0.0
    """Of executions: they end as placeholders at once."""
    void: float = 0.0
    """Of groups: nothing of them gets a valid reward."""

    def __post_init__(self) -> None:
        _require_shares(crashed=self.crashed, never_started=self.never_started, void=self.void)
        _require_shares(**{"crashed + never_started": self.crashed + self.never_started})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How progress depends on how full an engine is."""

    share: float = 0.0
    """Of an execution's time on a full engine: what stretches in proportion to load."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 0.8:
            raise ConfigError(f"decode share: from 0 to 0.8, not {self.share}")

    def rate(self, load: float) -> float:
        """Progress per second; `load` is calls over capacity, and at 1 the rate is 1."""
        return 1 / (1 - self.share + self.share * load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything about the work of a run that a policy cannot change."""

    durations: Durations
    deadlines: SimulatedDeadlines
    between: float = 0.0
    """Share of the variance that is between queries, by the normal behind each duration."""
    evaluations: RewardDurations = field(default_factory=RewardDurations)
    failures: Failures = field(default_factory=Failures)
    drift: Drift = field(default_factory=Drift)
    decode: Decode = field(default_factory=Decode)
    tokens_per_hour: float = 0.0
    """Tokens to train per hour of an execution's work."""

    def __post_init__(self) -> None:
        _require_shares(between=self.between)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingPhase:
    """What happens to an execution after its harness has ended."""

    evaluation_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """An execution from launch to closing, where nothing slows it."""

    rollout_s: float
    ending: Ending
    closing: ClosingPhase

    @property
    def total_s(self) -> float:
        return self.rollout_s + self.closing.evaluation_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedExecution:
    """What was drawn for one execution, before any deadline cuts it."""

    work_s: float
    """Seconds at rate 1 until its harness ends by itself."""
    ending: Ending
    """How it ends by itself."""
    evaluation_s: float
    """Infinite where no evaluation comes to an end."""
    is_assessable: bool
    """Whether its evaluation, if it ends, gives a valid reward."""
    tokens: float

    def course(self, deadlines: SimulatedDeadlines) -> Course:
        """On an engine where progress has rate 1."""
        is_late = self.work_s > deadlines.harness_s
        rollout_s = min(self.work_s, deadlines.harness_s)
        ending = Ending.TIMED_OUT if is_late else self.ending
        return Course(
            rollout_s=rollout_s, ending=ending, closing=self.closing(rollout_s, deadlines)
        )

    def closing(self, elapsed_s: float, deadlines: SimulatedDeadlines) -> ClosingPhase:
        """Of an execution whose harness ended that long after its launch."""
        if self.ending is Ending.NEVER_STARTED:
            return ClosingPhase(evaluation_s=0.0, outcome=Outcome.PLACEHOLDER)
        left_s = max(0.0, deadlines.overall_s - elapsed_s)
        if self.evaluation_s > left_s:
            return ClosingPhase(evaluation_s=left_s, outcome=Outcome.EXCLUDED)
        outcome = Outcome.VALID if self.is_assessable else Outcome.EXCLUDED
        return ClosingPhase(evaluation_s=self.evaluation_s, outcome=outcome)


class WorkloadDraws:
    """The executions of any group, by seed."""

    def __init__(self, workload: Workload, *, seed: int, group_size: int) -> None:
        self.workload = workload
        self._seed = seed
        self._group_size = group_size

    def group(self, number: int, *, step: int = 1) -> tuple[SimulatedExecution, ...]:
        """The group's executions, had it been admitted when this step was to come.

        A larger group has the executions of a smaller one, and more.
        """
        normals, uniforms, evaluations = (
            np.random.default_rng([self._seed, number, stream]) for stream in range(3)
        )
        size = self._group_size
        shared, *own = normals.standard_normal(1 + size).tolist()
        is_void, is_stuck, *chances = uniforms.random(2 + 3 * size).tolist()
        spread = evaluations.standard_normal(size).tolist()
        work = self.workload
        factor = work.drift.factor(step)
        within = sqrt(1 - work.between)
        found = []
        for member in range(size):
            normal = sqrt(work.between) * shared + within * own[member]
            hours = factor * work.durations.hours(number, member, normal)
            stuck, fate, cut = chances[3 * member : 3 * member + 3]
            found.append(
                self._execution(
                    hours,
                    fate=fate,
                    cut=cut,
                    evaluation_h=inf
                    if is_stuck < work.evaluations.stuck_queries
                    and stuck < work.evaluations.stuck_within
                    else _log_normal(work.evaluations, spread[member]),
                    is_assessable=is_void >= work.failures.void,
                )
            )
        return tuple(found)

    def _execution(
        self, hours: float, *, fate: float, cut: float, evaluation_h: float, is_assessable: bool
    ) -> SimulatedExecution:
        """`fate` chooses among endings, `cut` says where in its work a crash comes."""
        failures = self.workload.failures
        ending = Ending.COMPLETED
        if fate < failures.never_started:
            ending, hours = Ending.NEVER_STARTED, 0.0
        elif fate < failures.never_started + failures.crashed:
            ending, hours = Ending.CRASHED, hours * cut
        return SimulatedExecution(
            work_s=hours * HOUR_S,
            ending=ending,
            evaluation_s=evaluation_h * HOUR_S,
            is_assessable=is_assessable,
            tokens=hours * self.workload.tokens_per_hour,
        )


def _log_normal(evaluations: RewardDurations, normal: float) -> float:
    return evaluations.mean_h * exp(evaluations.sigma * normal - evaluations.sigma**2 / 2)


def _require_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{name}: a share from 0 to 1, not {share}")


NL2REPO_122B = Workload(
    durations=LogNormal(log_mean=0.508, sigma=0.385),
    between=0.43,
    deadlines=SimulatedDeadlines(harness_h=3.0, overall_h=4.25),
    evaluations=RewardDurations(mean_h=0.15, sigma=0.8, stuck_queries=0.152, stuck_within=0.0545),
)
"""Fitted to the published durations of repositories built by a 122B model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSize:
    """A claim that is only a size."""

    groups: float
    """The part of a group that it holds."""
    tokens: float


def sizes(executions: Sequence[SimulatedExecution], *, per_claim: int) -> tuple[ClaimSize, ...]:
    """A group as claims of whole executions, `per_claim` of them each."""
    if per_claim < 1:
        raise ConfigError(f"executions per claim: at least 1, not {per_claim}")
    parts = [executions[at : at + per_claim] for at in range(0, len(executions), per_claim)]
    return tuple(
        ClaimSize(
            groups=len(part) / len(executions), tokens=sum(execution.tokens for execution in part)
        )
        for part in parts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByGroups:
    """Every group costs the same."""

    groups_per_node_hour: float

    def seconds(self, size: ClaimSize, *, nodes: float) -> float:
        return size.groups / (self.groups_per_node_hour * nodes) * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTokens:
    """Cost follows tokens."""

    tokens_per_node_s: float

    def seconds(self, size: ClaimSize, *, nodes: float) -> float:
        return size.tokens / (self.tokens_per_node_s * nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What takes time beside executions."""

    training: ByGroups | ByTokens
    into_training_s: float = 0.0
    """A cell's switch from serving."""
    out_of_training_s: float = 0.0
    pull_s: float = 0.0
    """A satellite's copy of the core's weights."""
    update_s: float = 0.0
    """Gradients summed and the optimizer's step."""
    publication_s: float = 0.0

    def __post_init__(self) -> None:
        times = (self.into_training_s, self.out_of_training_s, self.pull_s, self.update_s)
        if not all(isfinite(value) and value >= 0 for value in (*times, self.publication_s)):
            raise ConfigError(f"costs: finite and not below 0, not {self}")
