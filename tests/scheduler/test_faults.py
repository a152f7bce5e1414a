"""Cells and engines that are lost, and events that come twice or cannot be."""

import pytest
from tests.scheduler.support.scene import Scene, core_in_training, of, shape

from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineLost,
    EngineReturned,
    EnterTraining,
    EvaluationRequested,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LeaveReason,
    LoadWeights,
    MoveExecutions,
    Publish,
    Published,
    RestartCell,
    RunStarted,
    StepTaken,
    TimerFired,
)
from gyre.scheduler.policies import Boundary
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import InternalError
from gyre.types.outcomes import Ending, Outcome


def test_a_dead_cell_gives_its_executions_to_others_and_is_restarted():
    scene = Scene(dispatch=Boundary(extra_dispatch=1))
    scene.admit()
    commands = scene.tell(CellDied(cell=2))

    assert RestartCell(cell=2) == commands[0]
    assert [MoveExecutions] == [type(one) for one in commands[1:]]
    assert 0 == scene.scheduler.engines.load(2)
    assert [] == scene.tell(CellDied(cell=2))


def test_executions_without_an_engine_are_served_before_new_ones_launch():
    scene = Scene(num_cells=2, cell_capacity=2, dispatch=Boundary(extra_dispatch=1))
    scene.admit()
    assert [RestartCell(cell=1)] == scene.tell(CellDied(cell=1))

    assert 2 == scene.scheduler.engines.num_stranded
    (moved,) = scene.terminate(0, 1)
    assert isinstance(moved, MoveExecutions)
    assert 1 == len(moved.moves)


def test_an_engine_that_comes_back_with_old_weights_loads_first():
    scene = Scene(standalone_capacities=(2,))
    scene.admit()

    assert LoadWeights(engine=3, version=0) in scene.tell(EngineLost(engine=3))
    assert 12 == scene.scheduler.engines.capacity
    scene.tell(EngineReturned(engine=3, version=0))
    assert 14 == scene.scheduler.engines.capacity


def test_the_core_comes_back_to_its_open_batch_without_a_supply_check():
    scene = core_in_training(supply_dwell_s=50.0)
    (entering,) = scene.tell(TimerFired(), at=50.0)
    scene.tell(CellTraining(cell=0, transition=entering.transition))
    scene.tell(GroupAssigned(group=0, step=0))
    scene.tell(GroupAssigned(group=1, step=0))
    scene.tell(CellDied(cell=0))

    assert [0] == [one.cell for one in scene.tell(CellRecovered(cell=0, version=0))]
    number = scene.current(0)
    assert [] == scene.tell(CellTraining(cell=0, transition=number))
    assert [Publish(version=1, engines=(1, 2))] == scene.tell(StepTaken(step=0))


def test_a_core_that_died_publishing_publishes_again():
    scene = core_in_training()
    scene.switch(scene.take_step(0, 0, 1))
    scene.tell(CellDied(cell=0))

    assert [Publish(version=1, engines=(0, 1, 2))] == scene.tell(CellRecovered(cell=0, version=0))


def test_work_that_nobody_can_serve_calls_the_last_cell_home():
    scene = core_in_training(dispatch=Boundary(extra_dispatch=1), num_cells=2)
    assert ["training", "serving"] == scene.states()
    scene.tell(CellDied(cell=1), at=100.0)

    assert 160.0 == scene.scheduler.wake_at(100.0)
    assert [] == scene.tell(TimerFired(), at=159.0)
    (home,) = scene.tell(TimerFired(), at=160.0)
    assert (0, LeaveReason.RESCUE) == (home.cell, home.reason)
    (moved,) = scene.tell(CellServing(cell=0, transition=home.transition))
    assert 4 == len(moved.moves)


def test_a_parked_core_resumes_when_the_work_is_done():
    scene = core_in_training(dispatch=Boundary(extra_dispatch=1), num_cells=2)
    scene.tell(CellDied(cell=1), at=100.0)
    scene.switch(scene.tell(TimerFired(), at=160.0))
    for group in (2, 3):
        for member in (0, 1):
            assert "serving" == scene.states()[0]
            commands = scene.terminate(group, member)

    assert [0] == [one.cell for one in of(EnterTraining, commands)]
    scene.switch(commands)
    assert scene.scheduler.burst.batch_open


def test_duplicates_change_nothing():
    scene = core_in_training()
    twice = [
        RunStarted(),
        GroupAdmitted(group=0),
        ExecutionTerminated(group=0, member=0, ending=Ending.CRASHED),
        ExecutionClosed(group=0, member=0, outcome=Outcome.EXCLUDED),
        Published(version=0),
    ]
    before = (scene.states(), scene.scheduler.counters, scene.scheduler.ledger.outcomes)

    assert [[]] * len(twice) == [scene.tell(event) for event in twice]
    assert before == (scene.states(), scene.scheduler.counters, scene.scheduler.ledger.outcomes)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ExecutionClosed(group=2, member=0, outcome=Outcome.VALID), "before it terminated"),
        (GroupAdmitted(group=9), "never dispatched"),
        (ExecutionTerminated(group=0, member=5, ending=Ending.COMPLETED), "no member 5"),
        (StepTaken(step=0), "lacks 2 groups"),
        (StepTaken(step=3), "not open"),
        (GroupAssigned(group=2, step=0), "before it was ready"),
        (GroupAssigned(group=0, step=1), "not open"),
        (Published(version=1), "before it was trained"),
        (CellRecovered(cell=7, version=0), "no cell 7"),
        (EngineLost(engine=-1), "no engine -1"),
        (EvaluationRequested(evaluation=1), "without slots"),
    ],
)
def test_what_cannot_be_is_refused(event, words):
    scene = core_in_training(dispatch=Boundary(extra_dispatch=1))

    with pytest.raises(InternalError, match=words):
        scene.tell(event)


def test_time_does_not_go_back_and_nothing_comes_before_the_start():
    scene = Scene()
    scene.tell(TimerFired(), at=3.0)

    with pytest.raises(InternalError, match="time went back"):
        scene.scheduler.handle(TimerFired(), 2.0)
    with pytest.raises(InternalError, match="before the run started"):
        Scheduler(shape()).handle(TimerFired(), 0.0)
