"""Staleness in closed form: what dispatch alone decides, with fractions where counts are whole.

Functions cite the labels of the paper's appendix on dispatch. Its symbols are spelled out: batch is
B, steps mu, extra phi, depth Q, ready R. Counts are of groups, and `depth` is Q_b (all unconsumed
groups) under boundary dispatch, Q_c (unfinished groups) under continuous.
Means suppose that every admitted group is consumed once and that ages do not grow without end
(ass:app-accounting); neither order nor durations matter.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Boundary, Continuous

Number: TypeAlias = int | float | Fraction


def over(numerator: Number, denominator: Number) -> Number:
    """A quotient that stays exact where both are."""
    if isinstance(numerator, float) or isinstance(denominator, float):
        return numerator / denominator
    return Fraction(numerator) / Fraction(denominator)


def boundary_staleness(*, extra: Number, steps: int) -> Number:
    """Mean over groups (eq:app-mean-scheduling-age, second form; eq:mean-version-diff)."""
    return extra + Fraction(steps - 1, 2)


def continuous_staleness(*, depth: Number, ready: Number, batch: int, steps: int) -> Number:
    """Mean over groups, `ready` being sampled once per publication
    (thm:app-continuous-staleness, eq:app-continuous-exact)."""
    return over(depth + ready, batch) + Fraction(steps - 1, 2)


def long_run_staleness(shape: SchedulerConfig, *, ready: float | None) -> float | None:
    """Mean over groups in the long run; None under continuous dispatch before `ready` was seen."""
    match shape.dispatch:
        case Boundary(extra_dispatch=extra):
            return float(boundary_staleness(extra=extra, steps=shape.steps_per_burst))
        case Continuous(depth=depth):
            if ready is None:
                return None
            batch, steps = shape.groups_per_batch, shape.steps_per_burst
            mean = continuous_staleness(depth=depth, ready=ready, batch=batch, steps=steps)
            return float(mean)


def dispatch_settings(*, mean_staleness: Fraction, batch: int) -> Iterator[tuple[Fraction, int]]:
    """All (extra, steps) of boundary dispatch with this mean, extra * batch whole (SPEC 1.4)."""
    steps = 1
    while (extra := mean_staleness - Fraction(steps - 1, 2)) >= 0:
        if (extra * batch).denominator == 1:
            yield extra, steps
        steps += 1


def elastic_packing_bound(
    *,
    slot_s: float,
    training_cell_s: float,
    num_cells: int,
    cell_capacity: int,
    standalone_capacity: int = 0,
) -> float:
    """Cells that serve or train, and engines that only serve, never idle.

    `slot_s` sums over executions the time each holds a place; `training_cell_s` is how long one
    cell would train alone.
    """
    room = num_cells * cell_capacity + standalone_capacity
    return max(training_cell_s / num_cells, (slot_s + training_cell_s * cell_capacity) / room)


def split_packing_bound(
    *, slot_s: float, training_cell_s: float, num_training_cells: int, capacity: int
) -> float:
    """Pools that each do one thing, never idle."""
    return max(slot_s / capacity, training_cell_s / num_training_cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A consumed group as a step from one publication to a later one."""

    after: int
    """The burst whose publication it was admitted by; 0 is the start."""
    consumed_in: int
    """The burst that consumed it, counted from 1."""
    duration_s: float
    """From admission to readiness, were it never to wait."""


def latency_bounds(
    links: Iterable[Link], *, num_bursts: int, burst_s: float, last_group_s: float
) -> list[float]:
    """Earliest time of each publication, the start first: the longest chain that leads to it.

    `burst_s` is the least time between two publications, `last_group_s` the least time from a
    group's readiness to the publication of the burst that consumes it.
    """
    into: list[list[Link]] = [[] for _ in range(num_bursts + 1)]
    for link in links:
        into[link.consumed_in].append(link)
    found = [0.0]
    for burst in range(1, num_bursts + 1):
        chains = [found[link.after] + link.duration_s + last_group_s for link in into[burst]]
        found.append(max([found[burst - 1] + burst_s, *chains]))
    return found
