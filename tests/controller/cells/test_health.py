"""Silence: an engine loses its calls first, and its process when the lease is over."""

import asyncio

import pytest
from tests.cell.support.fake_cells import FakeCell, FakeWorld
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop

from gyre.controller.cells.health import SILENT_S, HealthMonitor
from gyre.scheduler.messages import CellDied, EngineLost

LEASE_S = 60.0
DRAIN_S = 180.0


class Trainers:
    """A hall that knows who trains, and hears heartbeats."""

    def __init__(self):
        self.training = set()
        self.beats = []
        self.fenced = ()

    def trains(self, cell):
        return cell in self.training

    def beat(self, cell):
        self.beats.append(cell)

    def silent(self):
        found, self.fenced = self.fenced, ()
        return found


class Processes:
    """Of two cells and a standalone engine; each is over when a test says so."""

    def __init__(self):
        self.over = [asyncio.Event() for _ in range(3)]
        self.killed = []

    async def ended(self, cell):
        await self.over[cell].wait()
        return True

    async def end(self, cell):
        self.killed.append(cell)


class Scene:
    """Two cells and a standalone engine, and a clock that a test sets."""

    def __init__(self):
        self.world = FakeWorld()
        self.cells = cells_in_memory(self.world, 2, num_standalone=1)
        self.coordinator = Trainers()
        self.loop = FakeRunLoop()
        self.heard = self.loop.recorded
        self.processes = Processes()
        self.away = set()
        self.watch = HealthMonitor(
            self.loop,
            self,
            self.cells,
            self.processes,
            self.coordinator,
            lease_s=LEASE_S,
            drain_s=DRAIN_S,
        )

    def is_home(self, engine):
        """As the scheduler says."""
        return engine not in self.away

    async def at(self, now):
        """What is heard of once everybody was asked at that time."""
        self.loop.now = now
        self.heard.clear()
        await self.watch.ask()
        await asyncio.sleep(0)
        return list(self.heard)


def watched(work):
    async def live():
        await work(Scene())

    asyncio.run(live())


def test_whoever_answers_keeps_its_lease_and_nothing_is_said_of_it():
    async def work(scene):
        assert [] == await scene.at(0.0)
        assert [] == await scene.at(10 * LEASE_S)
        assert [0, 1, 2, 0, 1, 2] == scene.coordinator.beats

    watched(work)


def test_a_silent_cell_loses_its_engine_and_then_its_process():
    async def work(scene):
        await scene.at(0.0)
        scene.cells[1].client.die()

        assert [] == await scene.at(SILENT_S - 1)
        assert [EngineLost(engine=1)] == await scene.at(SILENT_S)
        assert [] == await scene.at(SILENT_S + 1), "it is said once"
        assert [CellDied(cell=1)] == await scene.at(LEASE_S)
        assert [] == await scene.at(LEASE_S + 1)

    watched(work)


def test_an_engine_that_answers_and_is_not_ready_is_lost_unless_its_cell_trains():
    """FAULTS of an engine alone: its trainer is well, and keeps its lease."""

    async def work(scene):
        for cell in (0, 1):
            scene.cells[cell].client.engine_ready = False
        scene.coordinator.training.add(0)
        await scene.at(0.0)

        assert [EngineLost(engine=1)] == await scene.at(SILENT_S)
        assert [] == await scene.at(2 * LEASE_S)

        scene.coordinator.training.clear()

        assert [EngineLost(engine=0)] == await scene.at(2 * LEASE_S + SILENT_S)

    watched(work)


@pytest.mark.parametrize(("cell", "fact"), [(1, CellDied(cell=1)), (2, EngineLost(engine=2))])
def test_an_engine_that_should_serve_and_is_never_ready_costs_its_process(cell, fact):
    """FAULTS I10: it takes weights, it refuses every call as draining, and it always will."""

    async def work(scene):
        scene.cells[cell].client.engine_ready = False
        scene.watch.follow(scene.cells[cell])
        await scene.at(0.0)

        assert [EngineLost(engine=cell)] == await scene.at(SILENT_S)
        assert [] == await scene.at(DRAIN_S - 1)
        assert [fact] == await scene.at(DRAIN_S)
        assert [] == await scene.at(2 * DRAIN_S), "it is said once"

    watched(work)


def test_an_engine_whose_cell_changes_its_role_takes_as_long_as_that_takes():
    async def work(scene):
        scene.cells[1].client.engine_ready = False
        scene.away.add(1)
        await scene.at(0.0)

        assert [EngineLost(engine=1)] == await scene.at(SILENT_S), "which the scheduler ignores"
        assert [] == await scene.at(10 * DRAIN_S)

        scene.away.clear()

        assert [] == await scene.at(20 * DRAIN_S)
        assert [CellDied(cell=1)] == await scene.at(21 * DRAIN_S)

    watched(work)


def test_an_engine_that_was_ready_meanwhile_may_be_lost_again():
    async def work(scene):
        cell = scene.cells[1].client
        cell.engine_ready = False
        await scene.at(0.0)
        await scene.at(SILENT_S)
        cell.engine_ready = True
        await scene.at(SILENT_S + 1)
        cell.engine_ready = False

        assert [] == await scene.at(SILENT_S + 2)
        assert [EngineLost(engine=1)] == await scene.at(3 * SILENT_S)

    watched(work)


def test_a_silent_standalone_engine_is_ended_for_another_to_take_its_place():
    async def work(scene):
        await scene.at(0.0)
        scene.cells[2].client.die()
        await scene.at(SILENT_S)

        assert [] == scene.processes.killed
        assert [EngineLost(engine=2)] == await scene.at(LEASE_S)
        assert [2] == scene.processes.killed

    watched(work)


def test_another_process_of_a_cell_has_a_lease_of_its_own():
    async def work(scene):
        await scene.at(0.0)
        scene.cells[1].client.die()
        await scene.at(LEASE_S - 1)
        scene.cells[1].replace(FakeCell(scene.world, 1))
        await scene.at(LEASE_S)
        scene.cells[1].client.die()

        assert [] == await scene.at(LEASE_S + 1)
        assert [EngineLost(engine=1)] == await scene.at(LEASE_S + SILENT_S)
        assert [CellDied(cell=1)] == await scene.at(2 * LEASE_S)

    watched(work)


@pytest.mark.parametrize("cell", [1, 2])
def test_a_process_that_is_yet_to_start_has_no_lease(cell):
    """It may take long to read its weights, and is not to be ended meanwhile."""

    async def work(scene):
        scene.cells[cell].client.die()
        await scene.at(0.0)

        assert [] == await scene.at(10 * LEASE_S)
        assert [] == scene.processes.killed

    watched(work)


@pytest.mark.parametrize("cell", [1, 2])
def test_nothing_more_is_said_of_a_process_that_is_given_up(cell):
    """While another is started in its place, however long that takes."""

    async def work(scene):
        await scene.at(0.0)
        scene.watch.follow(scene.cells[cell])
        scene.cells[cell].client.die()

        assert 1 == len(await scene.at(LEASE_S))

        scene.processes.over[cell].set()

        assert [] == await scene.at(2 * LEASE_S)
        assert [] == await scene.at(4 * LEASE_S)

    watched(work)


@pytest.mark.parametrize(("cell", "fact"), [(1, CellDied(cell=1)), (2, EngineLost(engine=2))])
def test_the_end_of_a_process_is_heard_at_once(cell, fact):
    async def work(scene):
        scene.watch.follow(scene.cells[cell])
        scene.processes.over[cell].set()
        await asyncio.gather(*scene.loop.tasks)

        assert [fact] == scene.heard

    watched(work)


def test_what_the_queue_has_fenced_is_said_to_have_died():
    async def work(scene):
        scene.coordinator.fenced = (1,)

        assert [CellDied(cell=1)] == await scene.at(0.0)

    watched(work)


def test_a_process_that_is_given_up_while_it_is_restarted_and_recovers_is_followed_to_its_end():
    """FAULTS I10: that it died is recorded again, because its cell was dead the first time."""

    async def work(scene):
        await scene.at(0.0)
        scene.cells[1].client.die()

        assert [CellDied(cell=1)] == await scene.at(LEASE_S)

        scene.cells[1].client.is_dead = False
        await scene.at(LEASE_S + 1)
        scene.cells[1].recovered(scene.loop.now)
        scene.watch.follow(scene.cells[1])
        scene.processes.over[1].set()
        await asyncio.gather(*scene.loop.tasks)

        assert [CellDied(cell=1)] == scene.heard

    watched(work)
