"""Closed forms that the package uses.

Staleness in closed form: what dispatch alone decides, with fractions where counts are whole.

Functions cite the labels of the paper's appendix on dispatch. Its symbols are spelled out: batch is
B, steps mu, extra phi, depth Q, ready R, admission_phase alpha. Counts are of groups, and `depth`
is Q_b (all unconsumed groups) under boundary dispatch, Q_c (unfinished groups) under continuous.
Means suppose that every admitted group is consumed once and that ages do not grow without end
(ass:app-accounting); neither order nor durations matter.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

Number: TypeAlias = int | float | Fraction


def over(numerator: Number, denominator: Number) -> Number:
    """A quotient that stays exact where both are."""
    if isinstance(numerator, float) or isinstance(denominator, float):
        return numerator / denominator
    return Fraction(numerator) / Fraction(denominator)


def staleness(*, trainer_version: int, published_version: int) -> int:
    """Of one group: v_t before its step, less v_d (eq:app-staleness-definition)."""
    return trainer_version - published_version


def boundary_depth(*, extra: Number, steps: int, batch: int) -> Number:
    """Unconsumed groups after each replenishment (eq:app-boundary-depth)."""
    return (extra + steps) * batch


def boundary_staleness_at_depth(*, depth: Number, batch: int, steps: int) -> Number:
    """Mean over groups (thm:app-boundary-staleness, eq:app-mean-scheduling-age, first form)."""
    return over(depth, batch) - Fraction(steps + 1, 2)


def boundary_staleness(*, extra: Number, steps: int) -> Number:
    """Mean over groups (eq:app-mean-scheduling-age, second form; eq:mean-version-diff)."""
    return extra + Fraction(steps - 1, 2)


def colocate_staleness(*, steps: int) -> Number:
    """Without extra dispatch (cor:app-boundary-cases, eq:app-colocated-no-extra)."""
    return boundary_staleness(extra=0, steps=steps)


def async_staleness(*, depth: Number, batch: int) -> Number:
    """With one step per burst (cor:app-async-one-step, eq:app-async-one-step)."""
    return over(depth - batch, batch)


def boundary_age_added(*, depth: Number, batch: int, steps: int) -> Number:
    """Age that survivors gain in one burst (proof of thm:app-boundary-staleness)."""
    return steps * depth - Fraction(batch * steps * (steps + 1), 2)


def continuous_age_added(*, depth: Number, ready: Number, steps: int) -> Number:
    """Age by published versions that survivors gain at one publication
    (proof of thm:app-continuous-staleness)."""
    return steps * (depth + ready)


def consumed_staleness(*, age_added: Number, age_before: Number, age_after: Number) -> Number:
    """Total over any window, stationary or not: what was added and is no longer outstanding."""
    return age_added - (age_after - age_before)


def continuous_staleness(*, depth: Number, ready: Number, batch: int, steps: int) -> Number:
    """Mean over groups, `ready` being sampled once per publication
    (thm:app-continuous-staleness, eq:app-continuous-exact)."""
    return over(depth + ready, batch) + Fraction(steps - 1, 2)


def continuous_staleness_without_carryover(*, depth: Number, batch: int, steps: int) -> Number:
    """No group is ready at a publication, as in a Colocate that can pause its executions
    (cor:app-continuous-cases, eq:app-colocated-continuous)."""
    return continuous_staleness(depth=depth, ready=0, batch=batch, steps=steps)


def cost_of_equal_depth(*, ready: Number, batch: int) -> Number:
    """Staleness that continuous dispatch adds to boundary dispatch at the same depth, with one
    step per burst (cor:app-continuous-cases, eq:app-equal-depth-staleness-cost)."""
    return 1 + over(ready, batch)


def interpolated_staleness(*, staleness: Number, admission_phase: Number) -> Number:
    """Without the part of an interval between publications that had passed at admission
    (app:dispatch-metrics)."""
    return staleness - admission_phase


def boundary_interpolated_staleness(*, depth: Number, batch: int) -> Number:
    """Mean d with one step per burst (eq:app-phase-staleness-allowance, left)."""
    return over(depth, batch) - 1


def continuous_interpolated_staleness(
    *, depth: Number, ready: Number, batch: int, admission_phase: Number
) -> Number:
    """Mean d with one step per burst (eq:app-phase-staleness-allowance, right)."""
    return over(depth + ready, batch) - admission_phase


def matched_boundary_depth(*, mean_staleness: Number, batch: int) -> Number:
    """Q_b for a mean interpolated staleness (thm:app-matched-depths,
    eq:app-phase-depth-relation)."""
    return batch * (mean_staleness + 1)


def matched_continuous_depth(
    *, mean_staleness: Number, batch: int, admission_phase: Number, ready: Number
) -> Number:
    """Q_c for a mean interpolated staleness (thm:app-matched-depths,
    eq:app-phase-depth-relation)."""
    return batch * (mean_staleness + admission_phase) - ready


def continuous_depth_beside(
    *, boundary_depth: Number, batch: int, admission_phase: Number, ready: Number
) -> Number:
    """Q_c at the interpolated staleness of a boundary depth (proof of thm:app-matched-depths)."""
    return boundary_depth - (1 - admission_phase) * batch - ready


def dispatch_settings(*, mean_staleness: Fraction, batch: int) -> Iterator[tuple[Fraction, int]]:
    """All (extra, steps) of boundary dispatch with this mean, extra * batch whole (SPEC 1.4)."""
    steps = 1
    while (extra := mean_staleness - Fraction(steps - 1, 2)) >= 0:
        if (extra * batch).denominator == 1:
            yield extra, steps
        steps += 1


def packing_bound(work: float, capacity: float) -> float:
    """Work in units of capacity times time, on something that is never idle."""
    return work / capacity


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
    cells = packing_bound(training_cell_s, num_cells)
    room = num_cells * cell_capacity + standalone_capacity
    return max(cells, packing_bound(slot_s + training_cell_s * cell_capacity, room))


def split_packing_bound(
    *, slot_s: float, training_cell_s: float, num_training_cells: int, capacity: int
) -> float:
    """Pools that each do one thing, never idle."""
    return max(packing_bound(slot_s, capacity), packing_bound(training_cell_s, num_training_cells))


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
