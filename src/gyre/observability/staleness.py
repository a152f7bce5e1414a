"""Expected staleness from dispatch alone; ages in order of admission."""

from collections import Counter, deque
from fractions import Fraction

from gyre.scheduler import rules
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Boundary, Continuous
from gyre.scheduler.staleness import Staleness


def in_order(shape: SchedulerConfig, *, steps: int) -> Counter[int] | None:
    """Groups of the first steps by staleness; None where admission follows readiness.

    The mean is that of every order once no group is left, because which group is consumed only
    moves age from one to another (SPEC 1.4).
    """
    dispatch = shape.dispatch
    if not isinstance(dispatch, Boundary):
        return None
    batch, burst = shape.groups_per_batch, shape.burst_groups
    waiting: deque[list[int]] = deque()
    """Version at dispatch and groups of it."""
    outstanding = 0
    found: Counter[int] = Counter()
    for version in range(steps):
        if version % shape.steps_per_burst == 0:
            endless = shape.steps is None or shape.endless_dispatch
            admitted = rules.groups_to_admit(
                wanted=dispatch.at_publication(burst=burst)
                if version
                else dispatch.at_start(batch=batch, burst=burst),
                outstanding=outstanding,
                groups_left=None if endless else ((shape.steps or 0) - version) * batch,
            )
            waiting.append([version, admitted])
            outstanding += admitted
        _consume(waiting, batch, version, found)
        outstanding -= batch
    return found


def _consume(waiting: deque[list[int]], batch: int, version: int, found: Counter[int]) -> None:
    while batch and waiting:
        first = waiting[0]
        taken = min(batch, first[1])
        if taken:
            found[version - first[0]] += taken
        first[1] -= taken
        batch -= taken
        if not first[1]:
            waiting.popleft()


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
