"""Cells start at once; when one cannot be started, no other goes on being started."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.config.support.tables import read

from gyre.controller.cells.processes import CellProcesses
from gyre.controller.run_dir import RunDir
from gyre.types.errors import ConfigError


class Crowded:
    """A cluster that finds no room for the last of three cells, while the others still wait."""

    def __init__(self):
        self.waiting = set()

    async def cell(self, cell, *, nodes=1):
        if cell == 2:
            await asyncio.sleep(0)
            raise ConfigError("cell 2: no node has room")
        self.waiting.add(cell)
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting.discard(cell)


def test_a_cell_that_finds_no_room_ends_the_wait_of_all_others(tmp_path):
    """Whoever waited on would ask the cluster for a node after it was closed."""

    async def work():
        config, places = (
            read(cells={"count": 3, "capacity": 8}).config,
            RunDir(run=tmp_path, share=tmp_path),
        )
        cell_processes = CellProcesses(config, places, None, Crowded(), None)
        async with asyncio.timeout(180), AsyncExitStack() as stack:
            with pytest.raises(ConfigError, match="cell 2: no node has room"):
                await cell_processes.start(stack)
            return (
                cell_processes.cluster.waiting,
                {cell.generation for cell in cell_processes.cells.values()},
            )

    assert (set(), {0}) == asyncio.run(work())
