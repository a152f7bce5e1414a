"""RunCells of a run whose processes are in memory."""

from tests.cell.support.fake_cells import FakeCell

from gyre.controller.cells.cell import RunCells


def cells_in_memory(world, num_cells=3, *, num_standalone=0):
    """Each has its first process."""
    cells = RunCells(num_cells, num_standalone=num_standalone)
    for number, cell in cells.items():
        cell.replace(FakeCell(world, number))
    return cells
