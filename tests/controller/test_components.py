"""What the parts of a run's training half have in common."""

from gyre.controller.components import report_death_once
from gyre.scheduler.messages import CellDied, RunStarted
from gyre.types.ids import CellId


def test_a_death_that_several_notice_is_heard_once_for_each_process():
    cells = {0: object(), 1: object()}
    heard = []
    record = report_death_once(heard.append, cells)

    for cell in (1, 1, 0, 1):
        record(CellDied(cell=CellId(cell)))
    record(RunStarted())
    record(RunStarted())
    cells[1] = object()
    record(CellDied(cell=CellId(1)))
    record(CellDied(cell=CellId(1)))

    died = [one.cell for one in heard if isinstance(one, CellDied)]
    assert [1, 0, 1] == died
    assert 2 == len(heard) - len(died)
