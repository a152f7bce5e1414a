"""Routes follow what changed, and are those that a comparison of everything would give."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controller.support.plain_routes import Told
from tests.controller.support.route_updates import (
    ENDED,
    ENGINE_NAMES,
    SHARDS,
    Routed,
    attempts_in,
    engine_name,
    finish,
    hands_of,
)
from tests.instructions import instructions
from tests.scheduler.support.machine import shapes
from tests.scheduler.support.scene import shape

from gyre.controller.executions.group_executions import name_of
from gyre.controller.recovered_state import recover
from gyre.controller.routes import ChangeTrackingDict, RouteTable, RouteTables
from gyre.scheduler.executions import Engines
from gyre.scheduler.messages import AdmitGroup, LaunchExecution, Move, MoveExecutions, OfferGroup
from gyre.scheduler.policies import Continuous, Elastic
from gyre.types.ids import EngineId, GroupId

SIZE = 8
FAULTS = ("kill", "lose", "relaunch", "another shard", "evaluate", "answer")


def trouble(world, chance):
    """One of the things that are nobody's plan."""
    match chance.choice(FAULTS):
        case "kill":
            world.kill(chance.randrange(world.shape.num_cells))
        case "lose":
            world.lose(chance.randrange(len(world.scheduler.engines)))
        case "relaunch" if world.seats.running:
            world.relaunch(chance.choice(list(world.seats.running)))
        case "another shard":
            world.another(chance.randrange(SHARDS))
        case "evaluate" if world.shape.evaluation_slots:
            world.request_evaluation()
        case "answer":
            world.answer(chance.randrange(SHARDS), waits=chance.random() < 0.5)


async def lived(shape, folder, seed):
    """A run with as much trouble as there may be; what every shard was told."""
    chance, world = random.Random(seed), Routed(shape, folder)
    tasks = [asyncio.create_task(work()) for work in (world.routes.work, world.work_plainly)]
    for _ in range(80):
        if world.stopped is None and chance.random() < 0.3:
            trouble(world, chance)
        world.go_on(chance.choice, turns=chance.randrange(4))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
    for shard in range(SHARDS):
        world.answer(shard, waits=False)
    await world.routes.flushed()
    for _ in range(8):
        await asyncio.sleep(0)
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return world


@given(some=shapes(), seed=st.integers(0, 10_000))
def test_every_shard_is_told_what_comparing_everything_would_tell_it(some, seed, tmp_path_factory):
    world = asyncio.run(lived(some, tmp_path_factory.getbasetemp(), seed))

    assert world.orders(1) == world.orders(0)


def overlooked_turns(monkeypatch):
    never = property(lambda self: 0, lambda self, value: None)
    monkeypatch.setattr(Engines, "num_turns", never, raising=False)


def overlooked_ends(monkeypatch):
    monkeypatch.setattr(ChangeTrackingDict, "__delitem__", lambda self, key: self._held.pop(key))


def overlooked_moves(monkeypatch):
    """Of who is set again, as one who is moved is."""

    def setitem(self, key, value):
        if key not in self._held:
            self._changed[key] = None
        self._held[key] = value

    monkeypatch.setattr(ChangeTrackingDict, "__setitem__", setitem)


def forgotten_after_a_death(monkeypatch):
    def again(self):
        self._life += 1
        self._sent.clear()

    monkeypatch.setattr(RouteTable, "again", again)


def believed_for_good(monkeypatch):
    """What was told counts as what is wanted, also if that has changed meanwhile."""

    def note_sent(self, changes):
        self._sent.update(changes)
        self._unsent.clear()

    monkeypatch.setattr(RouteTable, "_note_sent", note_sent)


@pytest.mark.parametrize(
    "fault",
    [
        overlooked_turns,
        overlooked_ends,
        overlooked_moves,
        forgotten_after_a_death,
        believed_for_good,
    ],
    ids=lambda one: one.__name__,
)
def test_a_change_that_is_overlooked_is_noticed(monkeypatch, tmp_path, fault):
    fault(monkeypatch)
    some = shape(cell_capacity=2, dispatch=Continuous(depth=2), placement=Elastic())
    worlds = (asyncio.run(lived(some, tmp_path, seed)) for seed in range(50))

    assert any(one.orders(0) != one.orders(1) for one in worlds)


def launch(group, member):
    return LaunchExecution(group=GroupId(group), member=member, engine=EngineId(group % 3))


class Crowd:
    """Hands that obey for so many groups, all of them running."""

    def __init__(self, groups, folder):
        self.shard = Told()
        self.shard.go.set()
        self.routes = RouteTables([self.shard], ENGINE_NAMES)
        self.attempts = attempts_in(folder, groups + 1)
        self.groups = groups
        engines = SimpleNamespace(is_ready=lambda engine: True, num_turns=1)
        self.executor = hands_of(
            SimpleNamespace(engines=engines, shape=SimpleNamespace(group_size=SIZE)),
            self.attempts,
            self.routes,
        )
        for group in range(groups):
            self.begin(group)

    def begin(self, group):
        admitted = AdmitGroup(group=GroupId(group), version=0, size=SIZE)
        self.executor.execute([admitted, *(launch(group, member) for member in range(SIZE))])

    async def events(self):
        """One is moved, its group ends and is offered, and another begins; all of it is told."""
        move = Move(group=GroupId(0), member=0, engine=EngineId(3))
        self.executor.execute([MoveExecutions(moves=(move,), evaluations=())])
        await self.routes.flushed()
        for member in range(SIZE):
            one = SimpleNamespace(name=name_of(0, member))
            finish(self.attempts.terminated(one, ENDED))
            self.executor.execute(())
            await self.routes.flushed()
        self.executor.execute([OfferGroup(group=GroupId(0), version=0, members=(), is_void=True)])
        self.begin(self.groups)
        await self.routes.flushed()


def instructions_of_events(groups, folder):
    """Those of whoever obeys and of whoever tells the shard."""
    with asyncio.Runner() as runner:

        async def begun():
            crowd = Crowd(groups, folder)
            working = asyncio.create_task(crowd.routes.work())
            await crowd.routes.flushed()
            return crowd, working

        crowd, working = runner.run(begun())
        counted = instructions(lambda: runner.run(crowd.events()))
        working.cancel()
    sizes = [len(routes) for _, routes in crowd.shard.orders]

    assert [groups * SIZE, *[1] * (1 + SIZE), SIZE] == sizes
    return counted


def test_an_event_costs_the_same_however_many_executions_run(tmp_path):
    few, many = (instructions_of_events(groups, tmp_path) for groups in (8, 512))

    assert many <= 1.05 * few


def test_what_an_earlier_controller_launched_has_its_routes_after_the_next_event(tmp_path):
    async def scenario():
        before = Routed(shape(), tmp_path)
        before.go_on(random.Random(1).choice, turns=5)
        found = recover(before.shape, [(now, event) for event, now, _ in before.log])
        shard, attempts = Told(), attempts_in(tmp_path, 5)
        routes = RouteTables([shard], ENGINE_NAMES)
        executor = hands_of(found.scheduler, attempts, routes)
        attempts.recall(found)
        executor.recall(found.outstanding)
        for group in found.outstanding:
            attempts.resume(group)
        executor.execute(())
        shard.go.set()
        working = asyncio.create_task(routes.work())
        await routes.flushed()
        working.cancel()
        return before.seats.all(), shard.orders

    seats, orders = asyncio.run(scenario())

    assert seats
    assert [(1, {name: engine_name(engine) for name, engine in seats.items()})] == orders
