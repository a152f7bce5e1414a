"""Async, Colocate and Resumable beside Elastic, and a cell alone."""

import pytest
from tests.scheduler.support.scene import Scene, of

from gyre.scheduler.messages import (
    AdmitGroup,
    EnterTraining,
    LeaveTraining,
    MoveExecutions,
    OpenBatch,
    Publish,
    Published,
    StopReason,
    StopRun,
)
from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, Elastic, Resumable


def test_async_cells_train_from_the_start_and_never_move():
    scene = Scene(placement=Async(), standalone_capacities=(4,))

    assert ["training"] * 3 == scene.states()
    assert OpenBatch(step=0) == scene.opening[-1]
    scene.admit()
    scene.ready(0, 1)
    assert [Publish(version=1, engines=(3,))] == scene.take_step(0, 0, 1)
    commands = scene.tell(Published(version=1))
    assert [AdmitGroup, AdmitGroup, OpenBatch] == [type(one) for one in commands]


def test_without_streaming_a_burst_waits_for_all_its_groups():
    scene = Scene(placement=Async(streaming=False), standalone_capacities=(8,), steps_per_burst=2)
    scene.admit()

    assert [] == of(OpenBatch, scene.ready(0, 1, 2))
    assert [OpenBatch(step=0)] == of(OpenBatch, scene.ready(3))


def test_a_colocated_pool_enters_together_when_the_standalone_engines_suffice():
    scene = Scene(
        placement=Colocate(),
        standalone_capacities=(2,),
        dispatch=Boundary(extra_dispatch=1),
        supply_dwell_s=0.0,
    )
    scene.admit()
    assert [] == of(EnterTraining, scene.ready(0, 1))
    scene.terminate(2, 0)
    commands = scene.terminate(2, 1)

    assert [0, 1, 2] == [one.cell for one in of(EnterTraining, commands)]
    moves = [move for one in of(EnterTraining, commands) for move in one.moves]
    assert {(3, 0), (3, 1)} >= {(move.group, move.member) for move in moves}
    assert all(move.engine == 3 for move in moves)


def test_a_colocated_core_does_not_stay():
    scene = Scene(placement=Colocate(), supply_dwell_s=0.0, standalone_capacities=(9,))
    scene.admit()
    scene.switch(of(EnterTraining, scene.ready(0, 1)))
    scene.switch(scene.take_step(0, 0, 1))

    assert [0] == [one.cell for one in of(LeaveTraining, scene.tell(Published(version=1)))]


def test_a_resumable_pool_pauses_its_executions_and_takes_them_back():
    scene = Scene(placement=Resumable(), dispatch=Continuous(depth=3))
    scene.admit()
    commands = scene.ready(0, 1)
    (first, *_) = of(EnterTraining, commands)

    assert () == first.moves
    assert 0 < scene.scheduler.engines.num_stranded
    scene.switch(of(EnterTraining, commands))
    scene.switch(scene.take_step(0, 0, 1))
    assert of(MoveExecutions, scene.tell(Published(version=1)))


@pytest.mark.parametrize("placement", [Elastic(), Elastic(streaming=False), Colocate()])
def test_one_cell_alone_works(placement):
    scene = Scene(num_cells=1, placement=placement, supply_dwell_s=0.0, steps=1)
    scene.admit()
    scene.switch(of(EnterTraining, scene.ready(0, 1)))

    assert [Publish(version=1, engines=())] == scene.take_step(0, 0, 1)
    assert [StopRun(reason=StopReason.FINISHED)] == scene.tell(Published(version=1))
