"""Orders to cells as a whole: each is answered once, and by the one who failed."""

import asyncio
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cell.support.fake_cells import FakeCell, FakeWorld
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.controller.training.test_coordinator import packer
from tests.testing.support.virtual_time import hurried

from gyre.cell.protocol import SavedCheckpoint
from gyre.controller.cells.transitions import COUNTED, RoleTransitions
from gyre.controller.training.coordinator import MOST_READS, TrainingCoordinator, TrainingSettings
from gyre.model.checkpoint_store import Checkpoint
from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineReturned,
    EnterTraining,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    Publish,
    Published,
    TransitionFailed,
)
from gyre.types.errors import ExposureGone

CORE, SATELLITE, STANDALONE = 0, 1, 2
LEASE_S = 60.0


class Keeper:
    """Every version is durable as soon as the core says so."""

    covered = 0

    def __init__(self, cells):
        self._cells = cells
        self.versions = []
        self.publish(checkpoint(0))
        self.acknowledged(0)

    def publish(self, new):
        self.published = new

    def acknowledged(self, version):
        self.versions.append(version)

    async def saved(self, version):
        await self._cells[CORE].client.save(Path("v"), version=version)
        return checkpoint(version), SavedCheckpoint(digest="", seconds=0.0, num_bytes=1)

    async def prune(self):
        pass

    def begin(self, version):
        pass

    @contextmanager
    def using(self, version):
        yield


class Reviving:
    """Another process is up at once."""

    def __init__(self, world, heard):
        self._world = world
        self._heard = heard
        self.hopeless = set()

    def is_hopeless(self, engine, seconds):
        return engine.number in self.hopeless

    async def end(self, cell):
        cell.client.die()

    async def revived(self, cell):
        self._heard.append(("revived", cell.number))
        await asyncio.sleep(0)
        cell.replace(FakeCell(self._world, cell.number))
        return 0

    def follow(self, cell):
        self._heard.append(("watched", cell.number))


class Routes:
    async def flushed(self):
        pass


class Proxy:
    async def wait_drained(self, engine):
        return dict.fromkeys(COUNTED, 0)


def checkpoint(version):
    return Checkpoint(version=version, folder=Path("v"), digest="d", has_optimizer=True)


class Scene:
    def __init__(self, offers):
        self.world = FakeWorld()
        self.cells = cells_in_memory(self.world, 2, num_standalone=1)
        self.loop = FakeRunLoop()
        self.heard = self.loop.recorded
        self.checkpointer = Keeper(self.cells)
        self.reviving = Reviving(self.world, self.heard)
        terms = TrainingSettings(
            groups_per_batch=1,
            batch_executions=1,
            lease_s=LEASE_S,
            join_s=0.1,
            group_s=0.3,
            scored_first=False,
        )
        self.coordinator = TrainingCoordinator(
            self.loop, self.cells, self.checkpointer, terms, packer
        )
        self.switching = RoleTransitions(
            self.loop,
            self.cells,
            self.coordinator,
            Routes(),
            Proxy(),
            self.checkpointer,
            self.reviving,
            self.reviving,
            publish_s=0.2,
            offers=offers,
        )

    async def enter(self, cell, transition=1):
        command = EnterTraining(cell=cell, transition=transition, moves=(), evaluations=())
        self.switching.ordered(command)
        await self.switching.enter(command)

    @property
    def events(self):
        """What the scheduler hears."""
        return [one for one in self.heard if type(one) in EVENTS]


EVENTS = (
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineReturned,
    Published,
    TransitionFailed,
)


def played(work, offers=False):
    async def live():
        async with asyncio.timeout(180.0):
            scene = Scene(offers)
            await work(scene)
            for task in scene.loop.tasks:
                task.cancel()
            await asyncio.gather(*scene.loop.tasks, return_exceptions=True)

    hurried(live())


def test_a_satellite_that_finds_no_core_goes_home_and_the_core_is_said_to_have_died():
    """FAULTS 23: nobody waits for a pull that cannot come, and the satellite is not blamed."""

    async def work(scene):
        await scene.enter(CORE)
        scene.cells[CORE].client.faults.append(("expose", "die"))
        await scene.enter(SATELLITE, transition=2)

        assert [
            CellTraining(cell=CORE, transition=1),
            CellDied(cell=CORE),
            TransitionFailed(cell=SATELLITE, transition=2),
        ] == scene.events
        assert ["enter", "leave", "load"] == scene.cells[SATELLITE].client.orders

    played(work)


@pytest.mark.parametrize("order", ["enter", "pull"])
def test_a_satellite_that_dies_on_its_way_leaves_the_core_alone(order):
    """FAULTS 23."""

    async def work(scene):
        await scene.enter(CORE)
        scene.cells[SATELLITE].client.faults.append((order, "die"))
        await scene.enter(SATELLITE, transition=2)

        assert [CellTraining(cell=CORE, transition=1), CellDied(cell=SATELLITE)] == scene.events
        assert scene.coordinator.trains(CORE)
        assert not scene.coordinator.trains(SATELLITE)

    played(work)


def test_a_satellite_takes_what_is_held_where_it_came_too_late_for_what_was():
    async def work(scene):
        await scene.enter(CORE)
        scene.cells[SATELLITE].client.faults += [("pull", "outdated")] * 2
        await scene.enter(SATELLITE, transition=2)

        assert CellTraining(cell=SATELLITE, transition=2) == scene.events[-1]
        assert 3 == scene.cells[SATELLITE].client.orders.count("pull")
        assert 3 == scene.cells[CORE].client.orders.count("expose")

    played(work)


def test_a_satellite_that_always_comes_too_late_goes_home():
    async def work(scene):
        await scene.enter(CORE)
        scene.cells[SATELLITE].client.faults += [("pull", "outdated")] * MOST_READS
        await scene.enter(SATELLITE, transition=2)

        assert TransitionFailed(cell=SATELLITE, transition=2) == scene.events[-1]
        assert MOST_READS == scene.cells[SATELLITE].client.orders.count("pull")

    played(work)


@pytest.mark.parametrize("fault", [None, ("enter", "refuse")])
def test_a_satellite_that_enters_with_the_core_pulls_once_the_core_is_in_or_could_not(fault):
    async def work(scene):
        core, satellite = scene.cells[CORE].client, scene.cells[SATELLITE].client
        core.faults += [fault] if fault else []
        let_in, enter = asyncio.Event(), core.enter

        async def enters():
            await let_in.wait()
            return await enter()

        core.enter = enters
        both = asyncio.gather(scene.enter(CORE), scene.enter(SATELLITE, transition=2))
        while "enter" not in satellite.orders:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        before = list(core.orders)
        let_in.set()
        await both

        assert "expose" not in before
        assert "expose" in core.orders
        assert CellTraining(cell=SATELLITE, transition=2) in scene.events

    played(work)


def test_a_satellite_that_waits_for_the_core_and_is_ordered_home_waits_no_longer():
    async def work(scene):
        core, satellite = scene.cells[CORE].client, scene.cells[SATELLITE].client
        let_in = asyncio.Event()
        core.enter = let_in.wait
        entering = asyncio.gather(scene.enter(CORE), scene.enter(SATELLITE, transition=2))
        while "enter" not in satellite.orders:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        home = LeaveTraining(cell=SATELLITE, transition=3, reason=LeaveReason.RESCUE)
        scene.switching.ordered(home)
        await scene.switching.leave(home)

        assert [CellServing(cell=SATELLITE, transition=3)] == scene.events
        assert "expose" not in core.orders
        entering.cancel()

    played(work)


def test_engines_of_other_cells_read_what_is_published_from_the_cores_memory():
    async def work(scene):
        everybody = (CORE, SATELLITE, STANDALONE)
        await scene.switching.publish(Publish(version=1, engines=everybody))

        assert [Published(version=1, silent=())] == scene.events
        assert "load" in scene.cells[CORE].client.orders
        assert (
            ["load given"]
            == scene.cells[SATELLITE].client.orders
            == scene.cells[STANDALONE].client.orders
        )

    played(work, offers=True)


@pytest.mark.parametrize(
    ("cell", "fault", "orders"),
    [
        (CORE, ("offer", "refuse"), ["load"]),
        (CORE, ("offer", "die"), ["load"]),
        (SATELLITE, ("load given", "outdated"), ["load given", "load"]),
    ],
)
def test_what_the_core_cannot_give_is_read_from_its_folder(cell, fault, orders):
    async def work(scene):
        scene.cells[cell].client.faults.append(fault)
        await scene.switching.load(LoadWeights(engine=SATELLITE, version=0))

        assert [EngineReturned(engine=SATELLITE, version=0)] == scene.events
        assert orders == scene.cells[SATELLITE].client.orders

    played(work, offers=True)


@pytest.mark.parametrize("what", ["refuse", "die", "hang"])
def test_a_publication_names_the_engines_that_did_not_take_it(what):
    """FAULTS 28: the others serve it."""

    async def work(scene):
        scene.cells[SATELLITE].client.faults.append(("load", what))
        await scene.switching.publish(Publish(version=1, engines=(SATELLITE, STANDALONE)))
        scene.cells[SATELLITE].client.hung.set()

        assert [Published(version=1, silent=(SATELLITE,))] == scene.events
        assert [0, 1] == scene.checkpointer.versions

    played(work)


def test_a_core_that_dies_before_its_weights_are_durable_publishes_nothing():
    async def work(scene):
        scene.cells[CORE].client.faults.append(("save", "die"))
        await scene.switching.publish(Publish(version=1, engines=(SATELLITE,)))

        assert [CellDied(cell=CORE)] == scene.events
        assert [0] == scene.checkpointer.versions
        assert [] == scene.cells[SATELLITE].client.orders

    played(work)


def test_of_two_orders_to_publish_only_the_later_is_answered():
    """The core died while engines loaded, came back, and is among those that are asked now."""

    async def work(scene):
        scene.cells[SATELLITE].client.faults.append(("load", "hang"))
        first = scene.loop.spawn(scene.switching.publish(Publish(version=1, engines=(SATELLITE,))))
        while "load" not in scene.cells[SATELLITE].client.orders:
            await asyncio.sleep(0)
        both = Publish(version=1, engines=(CORE, SATELLITE))
        scene.cells[CORE].client.faults.append(("load", "refuse"))
        second = scene.loop.spawn(scene.switching.publish(both))
        while "load" not in scene.cells[CORE].client.orders:
            await asyncio.sleep(0)
        scene.cells[SATELLITE].client.hung.set()
        await asyncio.gather(first, second)

        assert [Published(version=1, silent=(CORE,))] == scene.events

    played(work)


def test_a_fenced_engine_returns_when_it_has_what_is_published():
    """FAULTS 7: not by being there."""

    async def work(scene):
        await scene.switching.load(LoadWeights(engine=SATELLITE, version=0))

        assert [EngineReturned(engine=SATELLITE, version=0)] == scene.events
        assert ["load"] == scene.cells[SATELLITE].client.orders

    played(work)


def test_a_cell_whose_engine_takes_no_weights_is_given_up():
    async def work(scene):
        scene.cells[SATELLITE].client.faults.append(("load", "refuse"))
        scene.reviving.hopeless.add(SATELLITE)
        await scene.switching.load(LoadWeights(engine=SATELLITE, version=0))

        assert [CellDied(cell=SATELLITE)] == scene.events

    played(work)


def test_another_process_takes_the_place_of_a_standalone_engine_that_ended():
    async def work(scene):
        scene.cells[STANDALONE].client.die()
        scene.reviving.hopeless.add(STANDALONE)
        await scene.switching.load(LoadWeights(engine=STANDALONE, version=0))

        assert [EngineReturned(engine=STANDALONE, version=0)] == scene.events
        assert ("watched", STANDALONE) == scene.heard[-1]

    played(work)


def test_a_process_is_watched_once_its_cell_is_said_to_have_recovered():
    """Or its end could be heard before that, and be taken for the end of the one before it."""

    async def work(scene):
        await scene.switching.revive(SATELLITE)

        assert [
            ("revived", SATELLITE),
            CellRecovered(cell=SATELLITE, version=0),
            ("watched", SATELLITE),
        ] == scene.heard

    played(work)


@pytest.mark.parametrize("order", ["enter", "pull"])
def test_a_cell_that_hangs_on_its_way_is_replaced_without_waiting_for_it(order):
    """FAULTS 23: its process is ended first, and with it the order that never would."""

    async def work(scene):
        await scene.enter(CORE)
        satellite = scene.cells[SATELLITE].client
        satellite.faults.append((order, "hang"))
        scene.loop.spawn(scene.enter(SATELLITE, transition=2))
        while order not in satellite.orders:
            await asyncio.sleep(0)
        await scene.switching.revive(SATELLITE)

        assert CellRecovered(cell=SATELLITE, version=0) == scene.events[-1]
        assert satellite is not scene.cells[SATELLITE].client

    played(work)


def test_two_orders_to_load_replace_an_engine_once():
    """The second comes with the next publication, while another process is started."""

    async def work(scene):
        scene.cells[STANDALONE].client.die()
        scene.reviving.hopeless.add(STANDALONE)
        command = LoadWeights(engine=STANDALONE, version=0)
        await asyncio.gather(scene.switching.load(command), scene.switching.load(command))

        assert 1 == scene.heard.count(("revived", STANDALONE))
        assert [EngineReturned(engine=STANDALONE, version=0)] == scene.events

    played(work)


def test_an_order_to_publish_that_is_outdated_gives_nobody_older_weights():
    async def work(scene):
        async def newer():
            await scene.switching.publish(Publish(version=2, engines=()))

        scene.cells[CORE].client.faults.append(("save", newer))
        await scene.switching.publish(Publish(version=1, engines=(SATELLITE,)))

        assert 2 == scene.checkpointer.published.version
        assert [Published(version=2, silent=())] == scene.events

    played(work)


def test_an_engine_that_is_asked_for_more_while_it_loads_is_given_what_is_published_by_then():
    """A load that another has overtaken is refused, and that is no failure of its transition."""

    async def work(scene):
        satellite = scene.cells[SATELLITE].client

        async def overtaken():
            scene.checkpointer.publish(checkpoint(1))
            raise ExposureGone("version 0: the engine has 1, or is to load it")

        satellite.faults.append(("load", overtaken))
        command = LeaveTraining(cell=SATELLITE, transition=1, reason=LeaveReason.RESCUE)
        scene.switching.ordered(command)
        await scene.switching.leave(command)

        assert ["leave", "load", "load"] == satellite.orders
        assert [CellServing(cell=SATELLITE, transition=1)] == scene.events

    played(work)
