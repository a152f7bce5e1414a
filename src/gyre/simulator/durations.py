"""How many hours of work an execution is: by a formula, by quantiles, or as recorded."""

from dataclasses import dataclass
from itertools import pairwise
from math import exp
from statistics import NormalDist
from typing import Protocol

import numpy as np

from gyre.types.errors import ConfigError

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


MEASURED_DRIFT = Drift(to=0.92, first_step=1, last_step=12)
"""Fitted to the first twelve steps of the same runs."""
