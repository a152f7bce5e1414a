"""A controller that is told to stop while its processes start does so at once."""

import asyncio
import os
import signal

import pytest
from tests.flows.live.running import SCHEDULE, tasks_of, write_run
from tests.waiting import PATIENCE_S

from gyre.controller.cells.processes import CellProcesses
from gyre.controller.controller import Controller
from gyre.controller.run_dir import read_run
from gyre.testing.emulated_cell import tables

pytestmark = pytest.mark.slow


async def never_ready(cell_processes, stack):
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()


def test_told_before_cells_are_ready_it_ends_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(CellProcesses, "start", never_ready)
    tasks = tasks_of(tmp_path, seed=1, mean_s=1)
    path = write_run(tmp_path / "run.toml", tables(tmp_path / "run", tasks, {"schedule": SCHEDULE}))
    run = read_run(path)
    controller = Controller(run, tmp_path / "run")

    reason = asyncio.run(asyncio.wait_for(controller.work(), PATIENCE_S))

    assert reason is None
    assert [] == [one for one in (tmp_path / "run").glob("pids/*") if one.read_text()]
