"""Executions and groups: dispatched, launched, closed, offered, an example for each rule."""

from tests.scheduler.support.scene import Scene, core_in_training, of

from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    EvaluationEnded,
    EvaluationRequested,
    LaunchEvaluation,
    LaunchExecution,
    OfferGroup,
    StopReason,
    StopRun,
)
from gyre.scheduler.policies import Async, Boundary, Continuous
from gyre.types.outcomes import Ending, Outcome


def test_the_run_begins_with_its_whole_depth():
    scene = Scene(dispatch=Boundary(extra_dispatch=0.5), steps_per_burst=2)

    assert [0, 1, 2, 3, 4] == [one.group for one in of(AdmitGroup, scene.opening)]
    assert {0} == {one.version for one in scene.opening}


def test_depth_above_capacity_queues_and_loses_nothing():
    scene = Scene(dispatch=Boundary(extra_dispatch=30))
    launched = of(LaunchExecution, scene.admit())

    assert 12 == len(launched)
    assert 124 - 12 == scene.scheduler.counters.queued
    assert [(g, m) for g in range(6) for m in (0, 1)] == [(x.group, x.member) for x in launched]


def test_an_execution_goes_to_the_emptiest_engine_standalone_first_then_the_highest():
    scene = Scene(num_cells=2, cell_capacity=2, standalone_capacities=(2,), steps_per_burst=2)

    assert [2, 1, 0, 2, 1, 0] == [one.engine for one in of(LaunchExecution, scene.admit())]


def test_a_freed_slot_is_filled_with_the_next_in_line():
    scene = Scene(num_cells=1, cell_capacity=2)
    scene.admit()

    assert [LaunchExecution(group=1, member=0, engine=0)] == scene.terminate(0, 1)


def test_an_execution_cancelled_before_launch_moves_p_and_f_at_once():
    scene = Scene(num_cells=1, cell_capacity=2)
    scene.admit()
    scene.terminate(1, 0, Ending.CANCELLED)
    counters = scene.scheduler.counters

    assert (4, 3, 1) == (counters.dispatched, counters.launched, counters.terminated)
    assert 2 == counters.running


def test_evaluation_may_hold_the_slot_until_it_is_closed():
    scene = Scene(num_cells=1, cell_capacity=2, evaluation_holds_slot=True)
    scene.admit()

    assert [] == scene.terminate(0, 0)
    assert 4 == scene.scheduler.waterlevel
    assert [LaunchExecution(group=1, member=0, engine=0)] == scene.close(0, 0)
    assert 3 == scene.scheduler.waterlevel


def test_dispatch_stops_when_the_outstanding_groups_cover_the_steps_left():
    scene = Scene(dispatch=Boundary(extra_dispatch=2), steps=2)

    assert 4 == len(of(AdmitGroup, scene.opening))


def test_a_preset_may_dispatch_as_if_the_run_had_no_end():
    scene = Scene(dispatch=Boundary(extra_dispatch=2), steps=2, endless_dispatch=True)

    assert 6 == len(of(AdmitGroup, scene.opening))


def test_continuous_dispatch_replaces_a_group_as_soon_as_it_is_ready():
    scene = Scene(dispatch=Continuous(depth=3), placement=Async(), standalone_capacities=(6,))
    scene.admit()
    commands = scene.ready(1)

    assert [AdmitGroup(group=3, version=0, size=2)] == of(AdmitGroup, commands)


def test_continuous_dispatch_counts_its_whole_depth_in_the_waterlevel():
    scene = Scene(dispatch=Continuous(depth=4), supply_dwell_s=0.0)
    scene.admit()
    for group in range(4):
        scene.terminate(group, 0)

    assert 4 == scene.scheduler.counters.waterlevel
    assert 8 == scene.scheduler.waterlevel


def test_a_group_with_too_few_rewards_is_void_and_still_consumed():
    scene = core_in_training(min_valid=2, dispatch=Boundary(extra_dispatch=1))
    scene.ready(2)
    for member, outcome in ((0, Outcome.VALID), (1, Outcome.EXCLUDED)):
        scene.terminate(3, member)
        commands = scene.close(3, member, outcome)

    assert OfferGroup(group=3, version=0, members=(0,), is_void=True) == commands[0]
    scene.take_step(0, 2, 3)
    assert (1, 1, 2) == (
        scene.scheduler.ledger.void,
        scene.scheduler.ledger.trained,
        scene.scheduler.ledger.outstanding,
    )


def test_too_many_void_groups_stop_the_run():
    scene = Scene(max_void=0.25, dispatch=Boundary(extra_dispatch=1))
    scene.admit()

    assert [] == of(StopRun, scene.ready(0, outcome=Outcome.EXCLUDED))
    assert [StopRun(reason=StopReason.TOO_MANY_VOID)] == of(
        StopRun, scene.ready(1, outcome=Outcome.EXCLUDED)
    )


def test_surplus_executions_are_cancelled_at_the_nth_reward():
    scene = Scene(surplus=2, num_cells=1, cell_capacity=3)
    scene.admit()
    scene.terminate(0, 0)
    scene.close(0, 0)
    scene.terminate(0, 1)
    commands = scene.close(0, 1, Outcome.PLACEHOLDER)

    assert [2, 3] == [one.member for one in of(CancelExecution, commands)]
    scene.terminate(0, 2)
    scene.close(0, 2, Outcome.VALID)
    scene.terminate(0, 3, Ending.CANCELLED)
    commands = scene.close(0, 3, Outcome.SURPLUS)
    assert OfferGroup(group=0, version=0, members=(0, 1), is_void=False) == commands[0]
    assert 2 == scene.scheduler.ledger.outcomes[Outcome.SURPLUS]


def test_an_evaluation_takes_a_slot_and_lifts_the_waterlevel():
    scene = Scene(evaluation_slots=1)
    scene.admit()

    assert [LaunchEvaluation(evaluation=7, engine=1)] == scene.tell(
        EvaluationRequested(evaluation=7)
    )
    assert 5 == scene.scheduler.waterlevel
    assert [] == scene.tell(EvaluationRequested(evaluation=8))
    assert [LaunchEvaluation(evaluation=8, engine=1)] == scene.tell(EvaluationEnded(evaluation=7))


def test_an_evaluation_waits_while_it_would_crowd_out_work():
    scene = core_in_training(
        num_cells=2, cell_capacity=4, dispatch=Boundary(extra_dispatch=1), evaluation_slots=1
    )

    assert [] == scene.tell(EvaluationRequested(evaluation=1))
    assert [LaunchEvaluation(evaluation=1, engine=1)] == scene.terminate(2, 0)
