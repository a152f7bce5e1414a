"""Clients of cells: a death that several notice is recorded once for each process."""

from tests.cell.fake_cells import FakeCell, FakeWorld
from tests.controller.fake_run_loop import FakeRunLoop

from gyre.controller.cells.clients import CellClients
from gyre.scheduler.messages import CellDied


def test_a_death_that_several_notice_is_recorded_once_for_each_process():
    world, loop = FakeWorld(), FakeRunLoop()
    cells = CellClients({cell: FakeCell(world, cell) for cell in range(2)})

    for cell in (1, 1, 0, 1):
        cells.report_death(cells[cell], loop)
    before, cells[1] = cells[1], FakeCell(world, 1)
    for client in (before, cells[1], before, cells[1]):
        cells.report_death(client, loop)

    assert [CellDied(cell=cell) for cell in (1, 0, 1)] == loop.recorded
