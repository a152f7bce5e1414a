"""Ages that groups would have if they were consumed in the order of their admission."""

from collections import Counter, deque

from gyre.scheduler import rules
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.dispatch import Boundary


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
