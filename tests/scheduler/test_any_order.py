"""The scheduler keeps its promises in whatever order things happen, and the watch is awake."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.scheduler.support.machine import SchedulerMachine

from gyre.scheduler import policies
from gyre.scheduler.cells import CellState
from gyre.types.errors import InternalError

HOW = {"stateful_step_count": 40, "deadline": None}


class TestScheduler(SchedulerMachine.TestCase):
    settings = settings(**HOW)


def off_by_a_cell(*, waterlevel, capacity, leaving):
    return waterlevel <= capacity


def ignored_dwell(*, since, dwell_s, now):
    return since is not None


def over_replenished(*, wanted, outstanding, groups_left):
    return wanted + 1


def beyond_capacity(*, queued, capacity, occupied):
    return max(0, min(queued, capacity - occupied + 1))


def idle_slots(*, queued, capacity, occupied):
    return max(0, min(queued, capacity - occupied - 1))


def every_step(*, version, steps_per_burst):
    return True


def forgotten_joiner(state):
    return state is CellState.TRAINING


def missed_core(*, ready, needed, waterlevel, dispatching, capacity):
    return ready >= needed


def dispatch_forgotten(*, ready, needed, waterlevel, dispatching, capacity):
    return ready >= needed and waterlevel <= capacity


def supply_of_another_batch(*, ready, needed):
    return ready


def eager_evaluation(*, waterlevel, capacity, cells_away):
    return True


def never_void(*, counted, min_valid):
    return False


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("may_enter_training", off_by_a_cell),
        ("has_dwelt", ignored_dwell),
        ("groups_to_admit", over_replenished),
        ("executions_to_launch", beyond_capacity),
        ("executions_to_launch", idle_slots),
        ("ends_burst", every_step),
        ("goes_home", forgotten_joiner),
        ("may_stay", missed_core),
        ("may_stay", dispatch_forgotten),
        ("supply", supply_of_another_batch),
        ("may_start_evaluation", eager_evaluation),
        ("is_void", never_void),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_wrong_rule_is_noticed(monkeypatch, rule, fault):
    monkeypatch.setattr(policies, rule, fault)

    with pytest.raises((AssertionError, InternalError)):
        run_state_machine_as_test(
            SchedulerMachine,
            settings=settings(
                max_examples=2000,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                **HOW,
            ),
        )
