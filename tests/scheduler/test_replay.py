"""A recorded run through a fresh scheduler: the same orders, whatever the run was like."""

from dataclasses import replace

import pytest

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import RunStarted, TimerFired
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Elastic,
    LongestFirst,
    Resumable,
)
from gyre.scheduler.replay import plain_shape, replay, shape_of
from gyre.types.errors import ConfigError

PLAIN = SchedulerConfig(groups_per_batch=4, executions_per_group=8, num_cells=4, cell_capacity=24)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dispatch": Boundary(extra_dispatch=0.25), "steps": 6, "steps_per_burst": 3},
        {"dispatch": Continuous(depth=5), "placement": Elastic(streaming=False)},
        {"placement": Async(streaming=False), "standalone_capacities": (3, 9)},
        {"placement": Colocate(), "launch_order": LongestFirst(), "evaluation_slots": 2},
        {"placement": Resumable(), "dispatch": Continuous(depth=5), "overcommit": 1.5},
    ],
)
def test_a_shape_comes_back_from_its_plain_values(changes):
    shape = replace(PLAIN, **changes)
    plain = plain_shape(shape)

    assert shape == shape_of(plain)
    assert all(isinstance(one, int | float | bool | list | dict | None) for one in plain.values())


def test_a_field_that_an_older_run_did_not_write_has_its_default():
    plain = plain_shape(PLAIN)
    del plain["overcommit"], plain["launch_order"]

    assert PLAIN == shape_of(plain)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": 1}, "unknown colour"),
        ({"placement": {"kind": "elsewhere"}}, "describes none"),
        ({"placement": {"kind": "elastic", "colour": 1}}, "describes none"),
        ({"dispatch": 7}, "describes none"),
        ({"num_cells": "many"}, "describes none"),
        ({"num_cells": 0}, "num_cells: 0 is too few"),
    ],
)
def test_what_describes_no_shape_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        shape_of(plain_shape(PLAIN) | changes)


def test_a_replay_has_the_orders_after_each_event_and_the_scheduler_at_its_end():
    found = replay(PLAIN, [(0.0, RunStarted()), (1.0, TimerFired())])

    assert [6, 0] == [len(orders) for orders in found.orders]
    assert 6 == found.scheduler.ledger.admitted
