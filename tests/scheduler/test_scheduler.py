"""When cells enter training, and what the end of a burst does, an example for each rule."""

import pytest
from tests.scheduler.support.scene import Scene, core_in_training, of

from gyre.scheduler.messages import (
    AdmitGroup,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineReturned,
    EnterTraining,
    GroupAssigned,
    LaunchExecution,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    Move,
    OfferGroup,
    OpenBatch,
    Publish,
    Published,
    StopReason,
    StopRun,
    TimerFired,
    TransitionFailed,
)
from gyre.scheduler.policies import Boundary


def enter(cell, transition, *moves):
    return EnterTraining(cell=cell, transition=transition, moves=moves, evaluations=())


def test_a_cell_waits_for_the_dwell_time():
    scene = Scene()
    scene.admit()
    scene.now = 10.0
    scene.ready(0)

    assert 15.0 == scene.scheduler.wake_at(10.0)
    assert [] == scene.tell(TimerFired(), at=14.9)
    (entering,) = scene.tell(TimerFired(), at=15.0)
    assert enter(0, 0, Move(group=1, member=0, engine=2)) == entering


def test_the_dwell_time_begins_again_when_supply_fails():
    scene = core_in_training(supply_dwell_s=5.0, steps_per_burst=2)
    scene.switch(scene.tell(TimerFired(), at=5.0))
    scene.tell(GroupAssigned(group=0, step=0), at=6.0)
    scene.tell(GroupAssigned(group=1, step=0), at=9.0)

    assert [] == scene.tell(TimerFired(), at=20.0)
    assert [OfferGroup] == [type(one) for one in scene.ready(2)]
    assert scene.scheduler.wake_at(20.0) is None
    assert ["training", "serving", "serving"] == scene.states()


def test_a_cell_enters_only_if_what_remains_covers_the_waterlevel():
    scene = Scene(dispatch=Boundary(extra_dispatch=4), supply_dwell_s=0.0)
    scene.admit()
    scene.ready(0, 1, 2, 3)
    assert 12 == scene.scheduler.waterlevel
    scene.ready(4)
    scene.terminate(5, 0)

    assert 9 == scene.scheduler.waterlevel
    assert [0] == [one.cell for one in of(EnterTraining, scene.terminate(5, 1))]


def test_executions_of_a_cell_that_enters_move_to_the_highest_engines():
    scene = Scene(num_cells=3, cell_capacity=2, supply_dwell_s=0.0, steps_per_burst=2)
    assert [2, 1, 0, 2, 1, 0] == [one.engine for one in of(LaunchExecution, scene.admit())][:6]
    scene.ready(0)
    scene.terminate(3, 0)
    commands = scene.terminate(3, 1)

    assert [0] == [one.cell for one in of(EnterTraining, commands)]
    (entering,) = of(EnterTraining, commands)
    assert entering.moves
    assert all(scene.scheduler.engines.load(engine) <= 2 for engine in range(3))
    assert 0 == scene.scheduler.engines.num_stranded


def test_cells_enter_one_after_another_and_dwell_again():
    scene = Scene()
    scene.admit()
    scene.ready(0, 1)
    (first,) = scene.tell(TimerFired(), at=5.0)

    assert [] == scene.tell(TimerFired(), at=50.0)
    assert [OpenBatch(step=0)] == scene.tell(CellTraining(cell=0, transition=first.transition))
    assert [] == scene.tell(TimerFired(), at=54.9)
    assert [1] == [one.cell for one in scene.tell(TimerFired(), at=55.0)]


def test_a_satellite_that_fails_three_times_serves_and_the_next_one_enters():
    scene = Scene(supply_dwell_s=0.0)
    scene.admit()
    (core,) = of(EnterTraining, scene.ready(0, 1))
    commands = scene.tell(CellTraining(cell=0, transition=core.transition))
    for _ in range(3):
        (entering,) = of(EnterTraining, commands)
        assert 1 == entering.cell
        commands = scene.tell(TransitionFailed(cell=1, transition=entering.transition))

    assert [2] == [one.cell for one in of(EnterTraining, commands)]
    assert scene.scheduler.cells.serves_only(1)


def test_a_satellite_that_lost_its_core_on_the_way_has_not_failed():
    """It may enter again however often that happens."""
    scene = Scene(supply_dwell_s=0.0)
    scene.admit()
    commands = scene.ready(0, 1)
    for _ in range(4):
        (core,) = of(EnterTraining, commands)
        assert 0 == core.cell
        commands = scene.tell(CellTraining(cell=0, transition=core.transition))
        (entering,) = of(EnterTraining, commands)
        assert 1 == entering.cell
        scene.tell(CellDied(cell=0))
        scene.tell(TransitionFailed(cell=1, transition=entering.transition))
        commands = scene.tell(CellRecovered(cell=0, version=0))

    assert "serving" == scene.states()[1]
    assert not scene.scheduler.cells.serves_only(1)


def test_a_core_that_cannot_enter_stops_the_run():
    scene = Scene(supply_dwell_s=0.0)
    scene.admit()
    entering = of(EnterTraining, scene.ready(0))
    for _ in range(2):
        transition = entering[0].transition
        entering = scene.tell(TransitionFailed(cell=0, transition=transition))
    commands = scene.tell(TransitionFailed(cell=0, transition=entering[0].transition))

    assert [StopRun(reason=StopReason.CORE_FAILED)] == commands
    assert [] == scene.tell(TimerFired())


def test_a_cell_that_arrives_after_the_burst_goes_home():
    scene = Scene(supply_dwell_s=0.0)
    scene.admit()
    (core,) = of(EnterTraining, scene.ready(0, 1))
    (late,) = of(EnterTraining, scene.tell(CellTraining(cell=0, transition=core.transition)))
    (home,) = scene.take_step(0, 0, 1)

    assert (late.cell, LeaveReason.AFTER_BURST) == (home.cell, home.reason)
    assert [] == scene.tell(CellTraining(cell=late.cell, transition=late.transition))
    assert [Publish(version=1, engines=(1, 2))] == scene.tell(
        CellServing(cell=late.cell, transition=home.transition)
    )


def test_satellites_take_no_calls_before_the_weights_are_published():
    scene = core_in_training(dispatch=Boundary(extra_dispatch=1))
    scene.switch(scene.take_step(0, 0, 1))

    assert ["training", "waiting", "serving"] == scene.states()
    assert 4 == scene.scheduler.engines.capacity
    scene.tell(Published(version=1))
    assert 8 == scene.scheduler.engines.capacity


def test_the_core_loads_its_weights_and_then_groups_are_admitted():
    scene = core_in_training()
    scene.switch(scene.take_step(0, 0, 1))
    commands = scene.tell(Published(version=1))

    assert [LeaveTraining, AdmitGroup, AdmitGroup] == [type(one) for one in commands]
    assert LeaveReason.AFTER_PUBLICATION == commands[0].reason
    assert {1} == {one.version for one in commands[1:]}


@pytest.mark.parametrize(("capacity", "stays"), [(3, True), (2, False)])
def test_the_core_stays_if_it_has_work_and_is_not_missed(capacity, stays):
    """w + mu*N*B = 2 + 4 against the two satellites' capacity (eq:core-retention)."""
    scene = Scene(cell_capacity=capacity, dispatch=Boundary(extra_dispatch=1), supply_dwell_s=0.0)
    scene.admit()
    scene.switch(of(EnterTraining, scene.ready(0, 1, 2)))
    scene.switch(scene.take_step(0, 0, 1))
    assert 2 == scene.scheduler.waterlevel
    commands = scene.tell(Published(version=1))

    assert stays == (not of(LeaveTraining, commands))
    assert stays == bool(of(OpenBatch, commands))


def test_a_core_without_supply_does_not_stay():
    scene = core_in_training(cell_capacity=30, dispatch=Boundary(extra_dispatch=1))
    scene.switch(scene.take_step(0, 0, 1))

    assert [0] == [one.cell for one in of(LeaveTraining, scene.tell(Published(version=1)))]


def test_a_silent_engine_is_fenced_until_it_has_the_weights():
    scene = core_in_training()
    scene.switch(scene.take_step(0, 0, 1))
    commands = scene.tell(Published(version=1, silent=(2,)))

    assert LoadWeights(engine=2, version=1) in commands
    assert "fenced" == scene.states()[2]
    assert 4 == scene.scheduler.engines.capacity
    assert [LoadWeights(engine=2, version=1)] == scene.tell(EngineReturned(engine=2, version=0))
    scene.tell(EngineReturned(engine=2, version=1))
    assert "serving" == scene.states()[2]


def test_the_last_publication_ends_the_run():
    scene = core_in_training(steps=1)
    scene.switch(scene.take_step(0, 0, 1))

    assert [StopRun(reason=StopReason.FINISHED)] == scene.tell(Published(version=1))
    assert scene.scheduler.wake_at(scene.now) is None


def test_a_burst_of_two_steps_publishes_once():
    scene = core_in_training(steps_per_burst=2)
    scene.ready(2, 3)

    assert [OpenBatch(step=1)] == of(OpenBatch, scene.take_step(0, 0, 1))
    assert [] == of(Publish, scene.switch(of(EnterTraining, scene.tell(TimerFired()))))
    assert 0 == scene.scheduler.burst.published
    scene.switch(scene.take_step(1, 2, 3))
    scene.tell(Published(version=2))
    assert 2 == scene.scheduler.burst.published
    assert {0: 2, 1: 2} == scene.scheduler.staleness.histogram
