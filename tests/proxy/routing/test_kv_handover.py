"""Cached blocks follow calls that move, and a call never waits for them longer than it should."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest
from tests.proxy.routing.test_router import (
    MODEL,
    PATIENCE_S,
    PROMPT,
    QUICK,
    Gate,
    assert_exact,
    call,
    run,
)

from gyre.proxy.routing.engine_pool import Routes
from gyre.proxy.routing.router import Router
from gyre.testing.scripted_engine import ScriptedEngine
from gyre.types.errors import EngineError
from gyre.types.protocols import KvMovable
from gyre.types.sampling import PinnedKv, StoredKv

NUM_PROMPT = len(PROMPT) // 4


@dataclass
class Shelf:
    """What engines put and take, and everything that was done, in order."""

    files: dict = field(default_factory=dict)
    done: list = field(default_factory=list)


class CarryingEngine(ScriptedEngine):
    """An engine whose blocks are a number of tokens; each order may be made to fail or to hang."""

    def __init__(self, name, kv_store):
        super().__init__(name, MODEL)
        self.kv_store = kv_store
        self.pins = {}
        self.failing = set()
        self.hanging = set()

    async def _do(self, what):
        self.kv_store.done.append((what, self.name))
        if what in self.hanging:
            await asyncio.Event().wait()
        if what in self.failing:
            raise EngineError(f"engine {self.name}: {what} fails")

    async def pin(self, ask_id):
        assert ask_id == self.asks[-1].id
        assert ask_id not in self.aborted, "pinned after the cancel"
        await self._do("pin")
        held = PinnedKv(pin=len(self.pins), tokens=NUM_PROMPT)
        self.pins[held.pin] = held.tokens
        return held

    async def put(self, pin, name):
        await self._do("put")
        self.kv_store.files[name] = self.pins[pin]
        return StoredKv(name=name, num_bytes=100 * self.pins[pin])

    async def take(self, name):
        await self._do("take")
        held = PinnedKv(pin=100 + len(self.pins), tokens=self.kv_store.files.pop(name))
        self.pins[held.pin] = held.tokens
        return held

    async def let_go(self, pin):
        await self._do("let go")
        del self.pins[pin]


def routed(engines, settings):
    """A router that obeys a table, by the loop's clock."""
    clock = asyncio.get_running_loop().time
    return Router(engines, settings, routes=Routes(), jitter=random.Random(7), clock=clock)


def moved_once(prepare=lambda a, b: None, kv_s=5.0):
    """A call that is sent from a to b in the middle."""

    async def scenario():
        kv_store = Shelf()
        a, b = CarryingEngine("a", kv_store), CarryingEngine("b", kv_store)
        prepare(a, b)
        gate = Gate(a)
        router = routed([a, b], replace(QUICK, kv_s=kv_s))
        async with asyncio.timeout(PATIENCE_S), router, asyncio.TaskGroup() as tasks:
            router.assign(1, {"e": "a"})
            running = tasks.create_task(call(router))
            await gate.reached.acquire()
            assert 1 == router.assign(2, {"e": "b"})
            output = await running
            await asyncio.sleep(0)
        return output, router.counts, kv_store, a, b

    output, counts, kv_store, a, b = run(scenario)
    assert_exact(output)
    assert ["a", "b"] == [span.engine for span in output.spans]
    assert {} == counts.failures
    return counts, kv_store, a, b


def test_the_fake_is_what_it_stands_for():
    assert isinstance(CarryingEngine("a", Shelf()), KvMovable)
    assert not isinstance(ScriptedEngine("a", MODEL), KvMovable)


def test_blocks_are_pinned_before_the_cancel_and_let_go_after_they_arrived():
    """SPEC 2.3."""
    counts, kv_store, a, b = moved_once()

    assert [
        ("pin", "a"),
        ("put", "a"),
        ("take", "b"),
        ("let go", "a"),
        ("let go", "b"),
    ] == kv_store.done
    assert ({}, {}, {}) == (a.pins, b.pins, kv_store.files)
    assert (1, 0) == (counts.hand_overs, counts.lost_hand_overs)
    assert (NUM_PROMPT, 100 * NUM_PROMPT) == (counts.carried_tokens, counts.carried_bytes)
    # The four tokens that were sampled after the prompt are not in its blocks.
    assert (1, 4) == (counts.midway, counts.again_tokens)


@pytest.mark.parametrize("order", ["pin", "put", "take"])
@pytest.mark.parametrize("how", ["failing", "hanging"])
def test_a_call_goes_on_without_blocks_that_do_not_come(order, how):
    def prepare(a, b):
        for engine in (a, b):
            getattr(engine, how).add(order)

    counts, _, a, b = moved_once(prepare, kv_s=0.02)

    assert (0, 1) == (counts.hand_overs, counts.lost_hand_overs)
    assert NUM_PROMPT + 4 == counts.again_tokens
    assert ({}, {}) == (a.pins, b.pins)


def test_a_call_that_has_not_reached_its_engine_loses_nothing():
    """The engine knows nothing of it that could be pinned."""

    async def scenario():
        kv_store = Shelf()
        a, b = CarryingEngine("a", kv_store), CarryingEngine("b", kv_store)
        a.failing.add("pin")
        gate = Gate(a, after=0)
        router = routed([a, b], QUICK)
        async with asyncio.timeout(PATIENCE_S), router, asyncio.TaskGroup() as tasks:
            router.assign(1, {"e": "a"})
            running = tasks.create_task(call(router))
            await gate.reached.acquire()
            router.assign(2, {"e": "b"})
            return await running, router.counts

    output, counts = run(scenario)

    assert_exact(output)
    assert ["b"] == [span.engine for span in output.spans]
    assert (0, 0) == (counts.hand_overs, counts.lost_hand_overs)


def test_without_hand_over_only_the_tokens_computed_again_change():
    counts, kv_store, *_ = moved_once(kv_s=0.0)

    assert [] == kv_store.done
    assert (1, 0, 0, NUM_PROMPT + 4) == (
        counts.midway,
        counts.hand_overs,
        counts.lost_hand_overs,
        counts.again_tokens,
    )


def test_a_client_that_leaves_meanwhile_leaves_no_pin():
    async def scenario():
        kv_store = Shelf()
        a, b = CarryingEngine("a", kv_store), CarryingEngine("b", kv_store)
        gate = Gate(a)
        router = routed([a, b], QUICK)
        async with asyncio.timeout(PATIENCE_S), router:
            router.assign(1, {"e": "a"})
            running = asyncio.create_task(call(router))
            await gate.reached.acquire()
            # No engine: the call waits with its blocks pinned, and then nobody wants it any more.
            router.assign(2, {"e": None})
            while router.waiting == 0:
                await asyncio.sleep(0)
            held = dict(a.pins)
            running.cancel()
            await asyncio.wait([running])
            while a.pins:
                await asyncio.sleep(0)
        return held, kv_store

    held, kv_store = run(scenario)

    assert {0: NUM_PROMPT} == held
    assert [("pin", "a"), ("let go", "a")] == kv_store.done


@pytest.mark.parametrize("order", ["put", "take"])
def test_a_client_that_leaves_while_its_blocks_are_carried_leaves_no_pin(order):
    """Else its engine would never be empty, and its cell would wait in vain."""

    async def scenario():
        kv_store = Shelf()
        a, b = CarryingEngine("a", kv_store), CarryingEngine("b", kv_store)
        for engine in (a, b):
            engine.hanging.add(order)
        gate = Gate(a)
        router = routed([a, b], QUICK)
        async with asyncio.timeout(PATIENCE_S), router:
            router.assign(1, {"e": "a"})
            running = asyncio.create_task(call(router))
            await gate.reached.acquire()
            router.assign(2, {"e": "b"})
            while order not in [what for what, _ in kv_store.done]:
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            await router.wait_drained("a")
        return a.pins, kv_store.done

    pins, done = run(scenario)

    assert {} == pins
    assert ("let go", "a") == done[-1]


def test_a_call_that_ends_while_it_is_being_pinned_leaves_no_pin():
    """Its engine is empty then, and whoever waits for that hears of it."""

    async def scenario():
        kv_store = Shelf()
        a, b = CarryingEngine("a", kv_store), CarryingEngine("b", kv_store)
        gate = Gate(a)
        pinning, may_pin = asyncio.Event(), asyncio.Event()
        pin = a.pin

        async def slowly(ask_id):
            pinning.set()
            await may_pin.wait()
            a.aborted.clear()
            return await pin(ask_id)

        a.pin = slowly
        router = routed([a, b], QUICK)
        async with asyncio.timeout(PATIENCE_S), router:
            router.assign(1, {"e": "a"})
            running = asyncio.create_task(call(router))
            await gate.reached.acquire()
            router.assign(2, {"e": "b"})
            await pinning.wait()
            gate.open()
            output = await running
            may_pin.set()
            await router.wait_drained("a")
        return output, a.pins, router.counts

    output, pins, counts = run(scenario)

    assert_exact(output)
    assert {} == pins
    assert (0, 0) == (counts.hand_overs, counts.lost_hand_overs)


def test_an_engine_is_vacated_when_its_last_call_needs_nothing_of_it():
    async def scenario():
        kv_store = Shelf()
        a, b = CarryingEngine("a", kv_store), CarryingEngine("b", kv_store)
        gate = Gate(a)
        router = routed([a, b], QUICK)
        async with asyncio.timeout(PATIENCE_S), router:
            router.assign(1, {"e": "a"})
            running = asyncio.create_task(call(router))
            await gate.reached.acquire()
            vacated = asyncio.create_task(router.wait_drained("a"))
            await asyncio.sleep(0.01)
            assert not vacated.done()
            router.assign(2, {"e": "b"})
            await vacated
            done = list(kv_store.done)
            await running
        return done

    assert [("pin", "a"), ("put", "a"), ("take", "b"), ("let go", "a")] == run(scenario)
