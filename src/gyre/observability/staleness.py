"""Expected staleness from dispatch alone; ages in order of admission."""

from collections import Counter, deque
from collections.abc import Iterator
from fractions import Fraction

from gyre.scheduler import policies
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import Staleness
from gyre.scheduler.policies import Boundary
from gyre.simulator.theory import long_run_staleness


def in_order(shape: SchedulerConfig, *, steps: int) -> Counter[int] | None:
    """Groups of the first steps by staleness; None where admission follows readiness.

    The mean is that of every order once no group is left, because which group is consumed only
    moves age from one to another (SPEC 1.4).
    """
    dispatch = shape.dispatch
    if not isinstance(dispatch, Boundary):
        return None
    waiting: deque[list[int]] = deque()
    """Version at dispatch and groups of it."""
    found: Counter[int] = Counter()
    for version, (admitted, _) in enumerate(_updates(shape, dispatch, steps)):
        waiting.append([version, admitted])
        _consume(waiting, shape.groups_per_batch, version, found)
    return found


def _updates(shape: SchedulerConfig, dispatch: Boundary, steps: int) -> Iterator[tuple[int, int]]:
    """For each update the groups that were admitted just before it, and those that it left."""
    batch, burst = shape.groups_per_batch, shape.burst_groups
    endless = shape.steps is None or shape.endless_dispatch
    outstanding = 0
    for version in range(steps):
        admitted = 0
        if version % shape.steps_per_burst == 0:
            admitted = policies.groups_to_admit(
                wanted=dispatch.at_publication(burst=burst)
                if version
                else dispatch.at_start(batch=batch, burst=burst),
                outstanding=outstanding,
                groups_left=None if endless else ((shape.steps or 0) - version) * batch,
            )
        outstanding += admitted - batch
        yield admitted, outstanding


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
    ready = ages.ready_at_publication / ages.publications if ages.publications else None
    return long_run_staleness(shape, ready=ready)


def in_a_whole_run(shape: SchedulerConfig) -> Fraction | None:
    """The mean over all groups of a run that ends by itself; None where chance has a part in it.

    When the last step leaves no group, all survivors' ages have been consumed, and how many
    survive each update is a matter of counting.
    """
    dispatch = shape.dispatch
    if shape.steps is None or shape.endless_dispatch or not isinstance(dispatch, Boundary):
        return None
    survivors = sum(left for _, left in _updates(shape, dispatch, shape.steps))
    return Fraction(survivors, shape.steps * shape.groups_per_batch)
