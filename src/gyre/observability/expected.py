"""The staleness that dispatch alone decides: in the long run, and exactly where a run is short."""

from fractions import Fraction

from gyre.scheduler import rules
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.dispatch import Boundary, Continuous
from gyre.scheduler.staleness import Staleness


def in_the_long_run(shape: SchedulerConfig, ages: Staleness) -> float | None:
    """phi + (mu - 1) / 2, or (Q_c + R) / B + (mu - 1) / 2 once R was seen (SPEC 1.4, 1.5)."""
    match shape.dispatch:
        case Boundary():
            return shape.mean_staleness
        case Continuous(depth=depth):
            if not ages.publications:
                return None
            ready = ages.ready_at_publication / ages.publications
            return (depth + ready) / shape.groups_per_batch + (shape.steps_per_burst - 1) / 2


def in_a_whole_run(shape: SchedulerConfig) -> Fraction | None:
    """The mean over all groups of a run that ends by itself; None where chance has a part in it.

    When the last step leaves no group, all survivors' ages have been consumed, and how many
    survive each update is a matter of counting.
    """
    dispatch = shape.dispatch
    if shape.steps is None or shape.endless_dispatch or not isinstance(dispatch, Boundary):
        return None
    batch, burst = shape.groups_per_batch, shape.burst_groups
    wanted = dispatch.at_start(batch=batch, burst=burst)
    outstanding = survivors = 0
    for version in range(shape.steps):
        if version % shape.steps_per_burst == 0:
            outstanding += rules.groups_to_admit(
                wanted=wanted if version == 0 else dispatch.at_publication(burst=burst),
                outstanding=outstanding,
                groups_left=(shape.steps - version) * batch,
            )
        outstanding -= batch
        survivors += outstanding
    return Fraction(survivors, shape.steps * batch)
