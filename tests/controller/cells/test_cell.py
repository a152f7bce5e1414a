"""A cell's processes follow each other: what was known of one says nothing about the next."""

import pytest
from tests.cell.support.fake_cells import FakeCell, FakeWorld
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop

from gyre.controller.cells.cell import RunCells
from gyre.scheduler.messages import CellDied, EngineLost


def test_standalone_engines_are_numbered_behind_the_cells():
    cells = RunCells(2, num_standalone=1)

    assert [(0, False), (1, False), (2, True)] == [
        (number, cell.is_standalone) for number, cell in cells.items()
    ]


@pytest.mark.parametrize(("number", "fact"), [(1, CellDied(cell=1)), (2, EngineLost(engine=2))])
def test_a_death_that_several_notice_is_recorded_once_for_each_process(number, fact):
    world, loop = FakeWorld(), FakeRunLoop()
    cell = cells_in_memory(world, 2, num_standalone=1)[number]
    first = cell.generation

    assert [True, False] == [cell.report_death(first, loop) for _ in range(2)]

    cell.replace(FakeCell(world, number))

    assert not cell.report_death(first, loop), "another process has taken its place"
    assert cell.is_alive(cell.generation)
    assert [True, False] == [cell.report_death(cell.generation, loop) for _ in range(2)]
    assert [fact, fact] == loop.recorded


def test_the_next_process_begins_without_what_was_known_of_the_one_before():
    world = FakeWorld()
    cell = cells_in_memory(world)[1]
    cell.health.heard_at = cell.health.ready_at = 5.0
    cell.health.is_reported = True
    cell.num_refusals = 2
    cell.num_busy = 1

    cell.replace(FakeCell(world, 1))

    assert (None, None, False) == (
        cell.health.heard_at,
        cell.health.ready_at,
        cell.health.is_reported,
    )
    assert 0 == cell.num_refusals
    assert 1 == cell.num_busy, "tasks of the one before are still to end"
