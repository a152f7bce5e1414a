"""Whole runs in a benign world: the closed forms of staleness, and messages a journal can hold."""

import random

import msgspec
import pytest
from tests.scheduler.support.scene import shape
from tests.scheduler.support.world import World

from gyre.scheduler.messages import StopReason
from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, Elastic, Resumable
from gyre.scheduler.scheduler import Scheduler

PLACEMENTS = [
    kind(streaming=streaming) for kind in (Elastic, Async, Colocate) for streaming in (True, False)
]


def finished(seed=0, **changes):
    world = World(shape(**{"standalone_capacities": (3,), **changes}))
    choose = random.Random(seed).choice
    while world.stopped is None:
        world.go_on(choose)
    assert StopReason.FINISHED == world.stopped
    return world


@pytest.mark.parametrize("placement", PLACEMENTS, ids=repr)
@pytest.mark.parametrize(("extra", "burst"), [(0.5, 3), (1.5, 1), (0, 4)])
def test_the_age_of_groups_is_what_the_depth_says(placement, extra, burst):
    """thm:app-boundary-staleness: mu Q - B mu (mu + 1) / 2 per burst, whatever the order."""
    world = finished(
        placement=placement,
        dispatch=Boundary(extra_dispatch=extra),
        steps_per_burst=burst,
        steps=12,
        endless_dispatch=True,
    )
    staleness = world.scheduler.staleness
    depth = int((extra + burst) * 2)
    per_burst = burst * depth - 2 * burst * (burst + 1) // 2

    assert per_burst * (12 // burst) == staleness.consumed + staleness.outstanding_age(12)
    assert per_burst / (2 * burst) == world.shape.mean_staleness


@pytest.mark.parametrize("placement", [Elastic(), Async(), Resumable()], ids=repr)
def test_continuous_dispatch_is_as_old_as_its_depth_and_its_ready_groups(placement):
    """thm:app-continuous-staleness, with the change of what is outstanding added back."""
    world = finished(
        placement=placement,
        dispatch=Continuous(depth=3),
        steps_per_burst=2,
        steps=20,
        endless_dispatch=True,
    )
    staleness = world.scheduler.staleness
    published_age = staleness.consumed - 10 * 2 * (0 + 1)
    outstanding = staleness.outstanding_age(20)

    assert 10 == staleness.publications
    assert 2 * (10 * 3 + staleness.ready_at_publication) == published_age + outstanding


@pytest.mark.parametrize("placement", PLACEMENTS, ids=repr)
def test_every_message_goes_through_a_journal_and_back(placement):
    """A run whose events were encoded, decoded and replayed gives the same commands."""
    world = finished(placement=placement, steps=4, dispatch=Boundary(extra_dispatch=1))
    again = Scheduler(world.shape)

    for event, now, commands in world.log:
        read = msgspec.json.decode(msgspec.json.encode(event), type=type(event))
        assert commands == again.handle(read, now)
        for command in commands:
            encoded = msgspec.msgpack.encode(command)
            assert command == msgspec.msgpack.decode(encoded, type=type(command))
