"""What an event costs and what is kept, in numbers that no machine changes."""

import sys

import pytest
from tests.scheduler.support.scene import Scene, core_in_training

from gyre.scheduler.policies import Boundary


@pytest.mark.parametrize("overcommit", [1.0, 1.5])
def test_an_event_costs_the_same_however_many_executions_live(overcommit):
    def calls_per_event(groups):
        scene = Scene(
            num_cells=8,
            cell_capacity=2 * groups,
            overcommit=overcommit,
            dispatch=Boundary(extra_dispatch=(groups - 2) / 2),
        )
        scene.admit()
        return count_calls(lambda: scene.ready(*range(groups // 2, groups // 2 + 20)))

    few, many = calls_per_event(100), calls_per_event(4000)

    assert many <= 1.1 * few


def count_calls(work):
    """Python functions entered: the same on every machine."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_nothing_is_kept_of_a_consumed_group():
    scene = core_in_training()
    scene.take_step(0, 0, 1)

    assert scene.scheduler.group(0) is None
    assert 0 == scene.scheduler.engines.occupied
