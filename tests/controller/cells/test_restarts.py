"""Cells started again: up to date and verified before they serve, and not without end."""

import asyncio
import errno
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cell.support.fake_cells import FakeCell, FakeWorld
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.testing.support.virtual_time import hurried

from gyre.controller.cells.cell import MOST_STARTS, WELL_S, RestartBackoff
from gyre.controller.cells.transitions import CellRestarter
from gyre.model.checkpoint_store import Checkpoint
from gyre.types.errors import CellError, ConfigError
from gyre.types.run_events import CellRestarted


def checkpoint(version):
    path = Path(f"v{version:06d}")
    return Checkpoint(version=version, folder=path, digest=f"digest {version}", has_optimizer=True)


class Staff:
    """Processes in memory; of each cell the next starts go as a test says."""

    def __init__(self, world):
        self.world = world
        self.done = []
        self.next = []

    def log(self, cell):
        return Path(f"cell-{cell}.log")

    def is_over(self, cell):
        return self.world.clients[cell].is_dead

    async def end(self, cell):
        self.done.append(("end", cell))

    async def start_again(self, cell, first):
        version = None if first is None else first.version
        self.done.append(("start", cell, version))
        made = FakeCell(self.world, cell, weights=tuple(range(version or 0)))
        if self.next:
            fault = self.next.pop(0)
            if fault == "never ready":
                message = f"cell-{cell}: not ready"
                raise ConfigError(message)
            if fault == "disk full":
                raise OSError(errno.ENOSPC, "No space left on device")
            made.faults.append((fault, "die"))
        return made


class Hall:
    """Five steps are taken."""

    version = 5

    def __init__(self, done):
        self._done = done

    async def replay(self, core, version):
        self._done.append(("replay", version))
        core.weights = tuple(range(self.version))


class Keeper:
    """Version 4 is published and durable; newer ones become so when asked."""

    def __init__(self, done, newest):
        self._done = done
        self._newest = newest
        self.published = checkpoint(4)

    async def to_begin_from(self, most):
        self._done.append(("newest", most))
        return self._newest

    async def made(self, version):
        self._done.append(("checkpoint", version))

    @contextmanager
    def using(self, version):
        yield


class Scene:
    """A core, a satellite and a standalone engine that may be revived."""

    def __init__(self, newest=None):
        self.world = FakeWorld()
        self.cells = cells_in_memory(self.world, 2, num_standalone=1)
        self.cell_processes = Staff(self.world)
        self.loop = FakeRunLoop()
        self.heard = self.loop.recorded
        self.reviving = CellRestarter(
            self.loop,
            self.cell_processes,
            Hall(self.cell_processes.done),
            Keeper(self.cell_processes.done, newest),
            lease_s=60.0,
        )


def revived(scene, cell):
    async def work():
        clock = asyncio.get_running_loop().time
        began = clock()
        version = await scene.reviving.revived(scene.cells[cell])
        scene.waited_s = clock() - began
        return version

    return hurried(work())


def test_a_satellite_begins_with_what_is_published_and_shows_that_it_has_it():
    scene = Scene()

    assert 4 == revived(scene, 1)
    assert [("end", 1), ("start", 1, 4)] == scene.cell_processes.done
    assert ["health", "load"] == scene.cells[1].client.orders
    assert [(1, 0)] == [(one.cell, one.attempt) for one in scene.heard]


def test_a_core_replays_what_its_checkpoint_lacks_and_that_is_durable_before_it_serves():
    scene = Scene(newest=checkpoint(3))

    assert 4 == revived(scene, 0)
    assert [
        ("end", 0),
        ("newest", 5),
        ("start", 0, 3),
        ("replay", 3),
        ("checkpoint", 5),
    ] == scene.cell_processes.done
    assert ["health", "enter", "leave", "load"] == scene.cells[0].client.orders
    assert [3] == [one.trainer_version for one in scene.heard]


def test_a_core_with_a_checkpoint_of_the_last_step_replays_nothing():
    scene = Scene(newest=checkpoint(5))
    revived(scene, 0)

    assert ["health", "load"] == scene.cells[0].client.orders


def test_a_core_without_any_checkpoint_begins_as_the_run_did():
    scene = Scene(newest=None)
    revived(scene, 0)

    assert ("start", 0, None) in scene.cell_processes.done
    assert ("replay", 0) in scene.cell_processes.done


@pytest.mark.parametrize("fault", ["never ready", "disk full", "health", "enter", "leave", "load"])
def test_a_start_that_comes_to_nothing_is_tried_again_after_a_pause(fault):
    scene = Scene(newest=checkpoint(3))
    scene.cell_processes.next = [fault]

    assert 4 == revived(scene, 0)
    assert 2 == scene.cell_processes.done.count(("end", 0))
    assert pytest.approx(1.0) == scene.waited_s
    assert 1 == scene.heard[-1].attempt


def test_a_cell_that_never_comes_up_ends_the_run_by_name_and_log():
    scene = Scene()
    scene.cell_processes.next = ["never ready"] * MOST_STARTS

    with pytest.raises(
        CellError, match=r"cell 1: started 5 times in vain: cell-1: not ready; see cell-1.log"
    ):
        revived(scene, 1)

    assert MOST_STARTS == scene.cell_processes.done.count(("end", 1))
    assert [] == [one for one in scene.heard if isinstance(one, CellRestarted)]


def test_a_cell_that_ends_as_soon_as_it_is_well_ends_the_run_by_name_and_log():
    scene = Scene()

    async def work():
        for _ in range(MOST_STARTS + 1):
            await scene.reviving.revived(scene.cells[1])

    with pytest.raises(CellError, match=r"started 5 times and ended within 10 s; see cell-1.log"):
        hurried(work())


def test_pauses_grow_and_are_bounded_and_a_life_of_some_length_begins_anew():
    restarts = RestartBackoff()

    assert [0.0, 1.0, 2.0, 4.0, 8.0] == [restarts.begin(0.0) for _ in range(MOST_STARTS)]
    assert restarts.begin(0.0) is None

    restarts.well(0.0)

    assert restarts.begin(WELL_S - 1) is None

    restarts.well(100.0)

    assert 0.0 == restarts.begin(100.0 + WELL_S)
