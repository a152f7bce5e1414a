"""Executions have the engines that a controller says, and their calls move when it says so."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.routing.test_router import (
    PATIENCE_S,
    QUICK,
    Gate,
    assert_exact,
    call,
    engines,
    run,
)

from gyre.proxy.routing.engine_pool import Routes
from gyre.proxy.routing.router import Router
from gyre.testing.scripted_engine import EngineFault
from gyre.types.errors import EngineError, NotFound, RequestError


def routed(of):
    return Router(
        of, QUICK, routes=Routes(), jitter=random.Random(7), clock=asyncio.get_running_loop().time
    )


def where(output):
    return [span.engine for span in output.spans]


def test_an_older_order_is_refused_and_the_last_may_come_again():
    routes = Routes()

    assert routes.put(2, {"e": "a", "f": "b"})
    assert not routes.put(2, {"e": "b"})
    with pytest.raises(RequestError, match="expected 2 or later, found 1"):
        routes.put(1, {"e": "b"})
    assert routes.put(3, {"f": None})
    assert ("a", None, 1, 3) == (
        routes.engine("e"),
        routes.engine("f"),
        len(routes),
        routes.version,
    )


def test_calls_go_where_they_are_sent_however_full_that_is():
    async def scenario():
        async with asyncio.timeout(PATIENCE_S), routed(engines()) as router:
            router.assign(1, {"e": "b", "f": "b"})
            return await asyncio.gather(call(router), call(router, "f"), call(router))

    outputs = run(scenario)

    for output in outputs:
        assert_exact(output)
    assert [["b"], ["b"], ["b"]] == [where(output) for output in outputs]


def test_without_a_route_a_call_waits_and_is_charged_nothing():
    async def scenario():
        async with (
            asyncio.timeout(PATIENCE_S),
            routed(engines()) as router,
            asyncio.TaskGroup() as tasks,
        ):
            waiting = tasks.create_task(call(router))
            await asyncio.sleep(0.01)
            held = router.waiting
            router.assign(1, {"other": "a"})
            await asyncio.sleep(0)
            still = router.waiting
            router.assign(2, {"e": "a"})
            return await waiting, held, still, router

    output, held, still, router = run(scenario)

    assert_exact(output)
    assert (1, 1) == (held, still)
    assert 0.01 <= router.counts.held_s
    assert {} == router.counts.failures


def test_a_call_in_flight_goes_on_elsewhere_from_the_tokens_it_has():
    """SPEC 2.3."""

    async def scenario():
        a, b = both = engines()
        gate = Gate(a)
        async with (
            asyncio.timeout(PATIENCE_S),
            routed(both) as router,
            asyncio.TaskGroup() as tasks,
        ):
            router.assign(1, {"e": "a", "f": "b"})
            running = tasks.create_task(call(router))
            await gate.reached.acquire()
            moved = router.assign(2, {"e": "b"})
            output = await running
            return output, moved, router, a, b

    output, moved, router, a, b = run(scenario)

    assert_exact(output)
    assert 1 == moved
    assert ["a", "b"] == where(output)
    assert b.asks[-1].input_ids.startswith(a.asks[0].input_ids)
    assert len(b.asks[-1].input_ids) > len(a.asks[0].input_ids)
    assert {} == router.counts.failures
    assert ["ready", "ready"] == [engine.state for engine in router.engines()]


def test_an_engine_that_fails_a_routed_call_gets_it_again():
    """Another engine is the controller's to choose."""

    async def scenario():
        a, b = both = engines()
        a.fault = EngineFault(kind="die", after=4)
        async with asyncio.timeout(PATIENCE_S), routed(both) as router:
            router.assign(1, {"e": "a"})
            return await call(router), b

    output, b = run(scenario)

    assert_exact(output)
    assert ["a"] == where(output)
    assert [] == b.asks


def test_a_bad_request_is_not_tried_elsewhere():
    async def scenario():
        a, b = both = engines()
        a.fault = EngineFault(kind="refuse", status=400)
        async with asyncio.timeout(PATIENCE_S), routed(both) as router:
            router.assign(1, {"e": "a"})
            try:
                await call(router)
            except EngineError as error:
                return error, b

    error, b = run(scenario)

    assert not error.retryable
    assert [] == b.asks


def test_an_order_with_an_engine_nobody_knows_changes_nothing():
    async def scenario():
        async with asyncio.timeout(PATIENCE_S), routed(engines()) as router:
            router.assign(1, {"e": "a"})
            with pytest.raises(NotFound, match="no engine 'z'"):
                router.assign(2, {"e": "b", "f": "z"})
            return await call(router)

    assert ["a"] == where(run(scenario))


def test_a_proxy_that_chooses_itself_takes_no_routes():
    async def scenario():
        async with asyncio.timeout(PATIENCE_S), Router(engines(), QUICK) as router:
            router.assign(1, {"e": "a"})

    with pytest.raises(NotFound, match="chooses engines itself"):
        run(scenario)


@given(
    moves=st.lists(
        st.dictionaries(st.sampled_from("efg"), st.sampled_from(["a", "b", "c", None])), max_size=8
    ),
    pauses=st.lists(st.integers(0, 12), min_size=8, max_size=8),
)
def test_however_often_calls_move_each_token_is_there_once(moves, pauses):
    async def scenario():
        async with (
            asyncio.timeout(PATIENCE_S),
            routed(engines(3)) as router,
            asyncio.TaskGroup() as tasks,
        ):
            calls = [tasks.create_task(call(router, execution)) for execution in "efgefg"]
            for version, (changes, pause) in enumerate(zip(moves, pauses, strict=False), 1):
                router.assign(version, changes)
                for _ in range(pause):
                    await asyncio.sleep(0)
            router.assign(len(moves) + 1, dict.fromkeys("efg", "a"))
            outputs = [await one for one in calls]
            return outputs, router

    outputs, router = run(scenario)

    for output in outputs:
        assert_exact(output)
    assert 0 == router.waiting
    assert {} == router.counts.failures
