"""Calls find engines and outlive them."""

import asyncio
import random
from array import array
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.testing.support.virtual_time import hurried
from tests.waiting import PATIENCE_S

from gyre.config.sections import RouterConfig
from gyre.proxy.routing.router import Router
from gyre.testing.script import FastCoder, Script, ScriptedModel, ScriptedReply, after, logprobs
from gyre.testing.scripted_engine import EngineFault, ScriptedEngine
from gyre.testing.tokenizer import tokenizer
from gyre.types.errors import ConfigError, EngineError, NotFound, Unavailable
from gyre.types.sampling import SamplingParams, Span

CODER = FastCoder(tokenizer())
STOP = CODER.encode("<|im_end|>")[0]
SAMPLING = SamplingParams(max_tokens=500, stop_ids=(STOP,))
SCRIPT = Script([after("count", ScriptedReply(text=" ".join(str(number) for number in range(12))))])
MODEL = ScriptedModel(SCRIPT, CODER)
QUICK = RouterConfig(
    capacity=4,
    hold_s=30.0,
    idle_s=10.0,
    retry_first_s=0.0005,
    retry_most_s=0.002,
    break_after=3,
    probe_s=0.002,
)


def prompt(said="count"):
    text = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    return array("i", CODER.encode(text)).tobytes()


PROMPT = prompt()
REPLY = MODEL.plan(PROMPT, 500)


def engines(count=2, **options):
    return [ScriptedEngine(name, MODEL, **options) for name in "abcdef"[:count]]


@asynccontextmanager
async def routing(engines, **settings):
    async with asyncio.timeout(PATIENCE_S):
        clock = asyncio.get_running_loop().time
        router = Router(engines, replace(QUICK, **settings), jitter=random.Random(7), clock=clock)
        async with router:
            yield router


async def call(router, execution="e", sampling=SAMPLING, input_ids=PROMPT):
    accepted = await router.accept(execution)
    return await router.generate(accepted, input_ids=input_ids, sampling=sampling)


def run(scenario):
    """In a loop whose time passes by waiting alone: a machine that pauses ends no limit early."""
    return hurried(scenario())


class Gate:
    """Holds an engine's answers once they have `after` tokens, until opened."""

    def __init__(self, engine, after=4):
        self._after = after
        self._opened = asyncio.Event()
        self.reached = asyncio.Semaphore(0)
        """Released once for each answer that is held."""
        engine.before_chunk = self._hold

    async def _hold(self, ask, sent):
        await asyncio.sleep(0)
        if sent >= self._after and not self._opened.is_set():
            self.reached.release()
            await self._opened.wait()

    def open(self):
        self._opened.set()


def assert_exact(output):
    assert REPLY.ids == output.ids
    assert REPLY.logprobs == output.logprobs
    assert "stop" == output.finish


def test_a_call_comes_back_exact():
    async def scenario():
        (a,) = both = engines(1)
        async with routing(both) as router:
            return await call(router), a, router

    output, a, router = run(scenario)

    assert_exact(output)
    assert (Span(engine="a", version=0, tokens=len(REPLY.ids)),) == output.spans
    assert array("i", PROMPT).tolist() == output.echo
    assert 1 == output.attempts
    assert [PROMPT] == [ask.input_ids for ask in a.asks]
    assert {"e"} == {ask.execution for ask in a.asks}
    assert [("a", "ready", 0, 4)] == [
        (one.name, one.state, one.in_flight, one.capacity) for one in router.engines()
    ]


@pytest.mark.parametrize("kind", ["die", "abort", "json", "lengths", "nan", "no ids"])
@pytest.mark.parametrize("cut", [0, 1, 4, 5, len(REPLY.ids) - 1])
def test_a_call_that_is_cut_goes_on_elsewhere_from_what_it_has(kind, cut):
    """T07: FAULTS 1, 2, 6."""

    async def scenario():
        a, b = both = engines(version=3)
        b.version = 4
        a.fault = EngineFault(kind=kind, after=cut)
        async with routing(both) as router:
            return await call(router), a, b

    output, a, b = run(scenario)

    assert_exact(output)
    kept = array("i", REPLY.ids[:cut]).tobytes()
    assert [PROMPT] == [ask.input_ids for ask in a.asks]
    assert [PROMPT + kept] == [ask.input_ids for ask in b.asks]
    assert 500 - cut == b.asks[0].sampling.max_tokens
    spans = [Span(engine="a", version=3, tokens=cut)] if cut else []
    spans.append(Span(engine="b", version=4, tokens=len(REPLY.ids) - cut))
    assert tuple(spans) == output.spans
    assert array("i", PROMPT).tolist() == output.echo
    assert 2 == output.attempts


def test_a_call_whose_engine_dies_after_the_last_token_is_complete():
    async def scenario():
        a, b = both = engines()
        a.fault = EngineFault(kind="die", after=len(REPLY.ids))
        async with routing(both) as router:
            return await call(router), b

    output, b = run(scenario)

    assert_exact(output)
    assert [] == b.asks


def test_ids_of_asks_are_of_one_length_and_never_used_twice():
    """An engine may abort every ask whose id begins with the one given."""

    async def scenario():
        a, b = both = engines()
        a.next_faults.extend([EngineFault(kind="die", after=3)] * 2)
        async with routing(both) as router:
            await asyncio.gather(*(call(router) for _ in range(6)))
        return [ask.id for ask in a.asks + b.asks]

    ids = run(scenario)

    assert 8 == len(set(ids)) == len(ids)
    assert 1 == len({len(one) for one in ids})


def test_one_part_without_log_probabilities_leaves_the_whole_without():
    """T27."""

    async def scenario():
        a, b = both = engines()
        a.fault = EngineFault(kind="die", after=4)
        b.fault = EngineFault(kind="no logprobs")
        async with routing(both) as router:
            return await call(router)

    output = run(scenario)

    assert REPLY.ids == output.ids
    assert output.logprobs is None


def test_draining_moves_calls_and_returns_when_the_engine_is_empty():
    """T07: without a failure that anyone could see."""

    async def scenario():
        a, b = both = engines()
        gate = Gate(a)
        async with routing(both) as router, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(call(router))
            await gate.reached.acquire()
            await router.drain("a")
            emptied = a.running
            output = await running
            later = await call(router)
            router.resume("a")
            gate.open()
            return output, later, emptied, a, b, router

    output, later, emptied, a, _, router = run(scenario)

    assert_exact(output)
    assert_exact(later)
    assert 0 == emptied
    assert ["a", "b"] == [span.engine for span in output.spans]
    assert ["b"] == [span.engine for span in later.spans]
    assert [a.asks[0].id] == a.aborted
    assert ["ready", "ready"] == [engine.state for engine in router.engines()]
    assert {} == router.counts.failures


def test_draining_the_only_engine_holds_calls_until_it_is_back():
    async def scenario():
        (a,) = only = engines(1)
        gate = Gate(a)
        async with routing(only) as router, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(call(router))
            await gate.reached.acquire()
            await router.drain("a")
            newcomer = tasks.create_task(call(router, "f"))
            await asyncio.sleep(0)
            waiting = router.waiting
            gate.open()
            router.resume("a")
            return await running, await newcomer, waiting, len(a.asks)

    running, newcomer, waiting, asks = run(scenario)

    assert_exact(running)
    assert_exact(newcomer)
    assert 2 == waiting
    assert 3 == asks


def test_a_call_accepted_before_the_drain_begins_elsewhere():
    async def scenario():
        a, _ = both = engines()
        async with routing(both) as router:
            accepted = await router.accept("e")
            await router.drain("a")
            output = await router.generate(accepted, input_ids=PROMPT, sampling=SAMPLING)
            return output, a

    output, a = run(scenario)

    assert_exact(output)
    assert [] == a.asks


def test_resuming_ends_a_drain_that_still_waits():
    async def scenario():
        a, _ = both = engines()
        closing = asyncio.Event()

        async def stubborn(ask, sent):
            try:
                await asyncio.Event().wait()
            finally:
                await closing.wait()

        a.before_chunk = stubborn
        async with routing(both) as router, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(call(router))
            await asyncio.sleep(0)
            drain = tasks.create_task(router.drain("a"))
            await asyncio.sleep(0)
            router.resume("a")
            await drain
            closing.set()
            return await running

    assert_exact(run(scenario))


def test_an_engine_nobody_knows_cannot_be_drained():
    async def scenario():
        async with routing(engines()) as router:
            await router.drain("z")

    with pytest.raises(NotFound, match="known are a, b"):
        run(scenario)


def test_two_engines_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="twice"):
        Router([*engines(1), *engines(1)], QUICK)


def test_a_hang_is_noticed_and_the_call_goes_on_elsewhere():
    """FAULTS 3: the engine gets no calls until it answers again."""

    async def scenario():
        a, _ = both = engines()
        a.fault = EngineFault(kind="hang", after=4)
        async with routing(both, idle_s=0.02) as router:
            output = await call(router)
            other = await call(router, "f")
            state = router.engines()[0].state
            await a.close()
            return output, other, state, a, router.counts

    output, other, state, a, counts = run(scenario)

    assert_exact(output)
    assert ["a", "b"] == [span.engine for span in output.spans]
    assert ["b"] == [span.engine for span in other.spans]
    assert "broken" == state
    assert {"hang": 1} == counts.failures
    assert 1 == counts.breaker_opens
    assert 1 == len(a.aborted)


def test_many_silent_calls_ask_for_health_once():
    async def scenario():
        a, _ = both = engines()
        a.fault = EngineFault(kind="hang", after=4)
        async with routing(both, idle_s=0.05, probe_s=5.0) as router:
            outputs = await asyncio.gather(*(call(router, str(number)) for number in range(8)))
            return outputs, a

    outputs, a = run(scenario)

    for output in outputs:
        assert_exact(output)
    assert 4 == len(a.asks)
    assert 1 == a.health_asks


def test_a_slow_engine_that_is_healthy_is_left_alone():
    """FAULTS 4: silence alone is no failure."""

    async def scenario():
        (a,) = only = engines(1, chunk_tokens=8)
        asked = asyncio.Semaphore(0)
        healthy = a.health

        async def health():
            asked.release()
            return await healthy()

        async def wait_for_health(ask, sent):
            await asked.acquire()
            await asked.acquire()

        a.health = health
        a.before_chunk = wait_for_health
        async with routing(only, idle_s=0.01) as router:
            return await call(router), router.counts, a

    output, counts, a = run(scenario)

    assert_exact(output)
    assert (1, {}, 0) == (counts.attempts, counts.failures, counts.breaker_opens)
    assert 6 <= a.health_asks


def test_a_healthy_engine_that_lost_a_call_does_not_keep_it():
    """Half of hold_s without a sign, and the call moves."""

    async def scenario():
        a, _ = both = engines()
        a.fault = EngineFault(kind="stall", after=4)
        async with routing(both, idle_s=0.01, hold_s=0.1) as router:
            return await call(router), router.counts

    output, counts = run(scenario)

    assert_exact(output)
    assert {"stall": 1} == counts.failures


def test_a_refused_connection_breaks_the_circuit_at_once_and_a_probe_mends_it():
    async def scenario():
        a, _ = both = engines()
        a.fault = EngineFault(kind="gone")
        async with routing(both) as router:
            outputs = [await call(router, str(number)) for number in range(5)]
            broken = router.engines()[0].state
            refused = len(a.asks)
            # With the other engine gone, the next call waits until a probe has succeeded.
            await router.drain("b")
            a.fault = None
            outputs += [await call(router, "x")]
            return outputs, broken, refused, router.engines()[0].state, router.counts

    outputs, broken, refused, mended, counts = run(scenario)

    for output in outputs:
        assert_exact(output)
    assert "broken" == broken
    assert 1 == refused
    assert "ready" == mended
    assert ["a"] == [span.engine for span in outputs[-1].spans]
    assert {"refused": 1} == counts.failures


def test_an_engine_that_comes_back_elsewhere_is_asked_there_under_its_name():
    async def scenario():
        (gone,) = engines(1)
        gone.fault = EngineFault(kind="gone")
        elsewhere = ScriptedEngine("a", MODEL)
        async with routing([gone]) as router:
            waiting = asyncio.create_task(call(router))
            while not gone.asks:
                await asyncio.sleep(0)
            router.set_address(elsewhere)
            output = await waiting
            with pytest.raises(NotFound, match="known are a"):
                router.set_address(ScriptedEngine("z", MODEL))
            return output, len(elsewhere.asks), router.engines()[0].state

    output, num_asked, state = run(scenario)

    assert_exact(output)
    assert (1, "ready") == (num_asked, state)
    assert ["a"] == [span.engine for span in output.spans]


def test_calls_that_wait_follow_the_first_token_of_a_trial():
    async def scenario():
        (a,) = only = engines(1)
        a.next_faults.append(EngineFault(kind="gone"))
        gate = Gate(a)
        async with routing(only) as router, asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(call(router, str(number))) for number in range(3)]
            # All three are held in mid-answer at once, so the trial did not keep two waiting.
            for _ in running:
                await gate.reached.acquire()
            gate.open()
            return [await one for one in running]

    for output in run(scenario):
        assert_exact(output)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_storm_of_refusals_is_not_answered_with_a_storm(status):
    """FAULTS 5: fewer attempts than twice the calls, and nobody sees an error."""

    async def scenario():
        a, _ = both = engines()
        a.fault = EngineFault(kind="refuse", status=status)
        async with routing(both, probe_s=0.05) as router:
            outputs = await asyncio.gather(*(call(router, str(number)) for number in range(40)))
            return outputs, router.counts

    outputs, counts = run(scenario)

    for output in outputs:
        assert_exact(output)
    assert 40 <= counts.attempts < 80
    assert counts.breaker_opens >= 1


def test_when_all_engines_refuse_calls_are_held_and_few_attempts_are_made():
    async def scenario():
        (a,) = only = engines(1)
        a.fault = EngineFault(kind="refuse", status=503)
        async with routing(only, hold_s=0.2, probe_s=0.02) as router:
            answers = await asyncio.gather(
                *(call(router, str(number)) for number in range(20)), return_exceptions=True
            )
            return answers, len(a.asks)

    answers, asks = run(scenario)

    assert {Unavailable} == {type(answer) for answer in answers}
    # The four of the first moment, then one for each probe: at 20, 40, 80, 160 ms.
    assert asks <= 10


def test_a_bad_request_is_raised_and_not_repeated():
    async def scenario():
        a, b = both = engines()
        async with routing(both) as router:
            try:
                await call(router, input_ids=prompt("something else"))
            finally:
                asked.extend([len(a.asks), len(b.asks)])
                states.extend(engine.state for engine in router.engines())
                in_flight.extend(engine.in_flight for engine in router.engines())

    asked, states, in_flight = [], [], []
    with pytest.raises(EngineError, match="no rule") as error:
        run(scenario)

    assert not error.value.retryable
    assert [1, 1] == asked
    assert ["ready", "ready"] == states
    assert [0, 0] == in_flight


def test_a_request_that_one_engine_calls_bad_may_suit_another():
    async def scenario():
        a, _ = both = engines()
        a.fault = EngineFault(kind="refuse", status=400)
        async with routing(both) as router:
            return await call(router), router.counts

    output, counts = run(scenario)

    assert_exact(output)
    assert {"bad request": 1} == counts.failures
    assert 0 == counts.breaker_opens


def test_cancelling_aborts_at_the_engine_and_leaves_what_was_sampled():
    """T08: FAULTS 9."""

    async def scenario():
        (a,) = only = engines(1)
        gate = Gate(a, after=8)
        async with routing(only) as router:
            accepted = await router.accept("e")
            task = asyncio.create_task(
                router.generate(accepted, input_ids=PROMPT, sampling=SAMPLING)
            )
            await gate.reached.acquire()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return accepted.output_so_far(), a, router.engines()[0].in_flight

    output, a, in_flight = run(scenario)

    assert (REPLY.ids[:8], REPLY.logprobs[:8]) == (output.ids, output.logprobs)
    assert "abort" == output.finish
    assert [a.asks[0].id] == a.aborted
    assert 0 == in_flight


def test_calls_are_served_in_the_order_they_came():
    async def scenario():
        (a,) = only = engines(1)
        async with routing(only, capacity=1) as router:
            await asyncio.gather(*(call(router, str(number)) for number in range(6)))
            return [ask.execution for ask in a.asks], a.most_running

    assert (["0", "1", "2", "3", "4", "5"], 1) == run(scenario)


def test_a_call_that_comes_back_stands_before_those_that_came_after_it():
    async def scenario():
        (a,) = only = engines(1)
        gate = Gate(a)
        async with routing(only, capacity=1) as router, asyncio.TaskGroup() as tasks:
            first = tasks.create_task(call(router, "first"))
            await gate.reached.acquire()
            others = [tasks.create_task(call(router, str(number))) for number in range(3)]
            await asyncio.sleep(0)
            await router.drain("a")
            gate.open()
            router.resume("a")
            for one in [first, *others]:
                assert_exact(await one)
            return [ask.execution for ask in a.asks]

    assert ["first", "first", "0", "1", "2"] == run(scenario)


def test_an_execution_returns_to_its_engine_and_others_go_to_the_emptiest():
    async def scenario():
        both = engines()
        async with routing(both) as router:
            seats = [await router.accept(execution) for execution in "uvw"]
            for seat in seats:
                router.release(seat)
            seats = [await router.accept(execution) for execution in "vwvx"]
            return [seat.slots.name for seat in seats]

    assert ["b", "a", "b", "a"] == run(scenario)


def test_without_an_engine_a_call_is_refused_after_a_while():
    async def scenario():
        only = engines(1)
        async with routing(only, capacity=1, hold_s=0.02) as router:
            seat = await router.accept("e")
            try:
                await router.accept("f")
            finally:
                counts.append((router.counts.unavailable, router.waiting))
                router.release(seat)

    counts = []
    with pytest.raises(Unavailable, match=r"no engine within 0\.02 s"):
        run(scenario)

    assert [(1, 0)] == counts


def test_a_call_that_gets_tokens_again_and_again_is_never_given_up():
    async def scenario():
        (a,) = only = engines(1, chunk_tokens=1)
        a.fault = EngineFault(kind="die", after=1)
        async with routing(only, hold_s=0.1, probe_s=0.0005, break_after=10**6) as router:
            return await call(router)

    output = run(scenario)

    assert_exact(output)
    assert len(REPLY.ids) == output.attempts


def test_a_router_that_is_not_running_takes_nothing():
    with pytest.raises(Unavailable, match="not running"):
        asyncio.run(Router(engines(1), QUICK).accept("e"))


def test_a_seat_given_in_the_moment_of_cancelling_is_not_lost():
    async def scenario():
        only = engines(1)
        async with routing(only, capacity=1) as router:
            seat = await router.accept("e")
            waiting = asyncio.create_task(router.accept("f"))
            await asyncio.sleep(0)
            router.release(seat)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return router.engines()[0].in_flight, router.waiting

    assert (0, 0) == run(scenario)


def test_time_without_an_engine_is_told_apart_from_time_with_one():
    """SPEC 6.1."""

    async def scenario():
        now = [100.0]
        (a,) = only = engines(1)
        gate = Gate(a)
        router = Router(only, replace(QUICK, capacity=1), clock=lambda: now[0])
        async with asyncio.timeout(PATIENCE_S), router, asyncio.TaskGroup() as tasks:
            first = tasks.create_task(call(router, "first"))
            await gate.reached.acquire()
            second = tasks.create_task(router.accept("second"))
            await asyncio.sleep(0)
            now[0] += 5.0
            gate.open()
            output = await first
            accepted = await second
            router.release(accepted)
            return output.engine_s, accepted.held_s, router.counts.held_s

    assert (5.0, 5.0, 5.0) == run(scenario)


def test_calls_of_one_execution_that_wait_together_are_counted_once():
    """SPEC 6.1: what is taken off a deadline is time, and not calls."""

    async def scenario():
        now = [100.0]
        (a,) = only = engines(1)
        gate = Gate(a)
        router = Router(only, replace(QUICK, capacity=1), clock=lambda: now[0])
        async with asyncio.timeout(PATIENCE_S), router, asyncio.TaskGroup() as tasks:
            first = tasks.create_task(call(router, "first"))
            await gate.reached.acquire()
            waiting = [tasks.create_task(router.accept("second")) for _ in range(3)]
            await asyncio.sleep(0)
            now[0] += 5.0
            meanwhile = router.held.of("second"), router.held.of("first")
            gate.open()
            await first
            for one in waiting:
                router.release(await one)
            return meanwhile, router.held.of("second")

    assert ((5.0, 0.0), 5.0) == run(scenario)


FAULTS = st.one_of(
    st.none(),
    st.builds(
        EngineFault,
        kind=st.sampled_from(["die", "abort", "json", "lengths", "refuse", "gone"]),
        after=st.integers(0, len(REPLY.ids)),
        status=st.sampled_from([429, 500, 503]),
    ),
)


@given(
    schedules=st.lists(st.lists(FAULTS, max_size=8), min_size=1, max_size=3),
    chunk_tokens=st.integers(1, 7),
    capacity=st.integers(1, 3),
    calls=st.integers(1, 10),
    drains=st.lists(st.integers(0, 2), max_size=4),
    leavers=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=4),
    most=st.integers(1, len(REPLY.ids)),
)
def test_whatever_fails_every_call_ends_with_exactly_its_reply(
    schedules, chunk_tokens, capacity, calls, drains, leavers, most
):
    """T07, T08: I5, I6 of FAULTS, with capacity never exceeded and no seat left taken."""

    async def scenario():
        fleet = engines(len(schedules), chunk_tokens=chunk_tokens)
        for engine, faults in zip(fleet, schedules, strict=True):
            engine.next_faults.extend(faults)

        async def disturb():
            for number in drains:
                name = fleet[number % len(fleet)].name
                await router.drain(name)
                await asyncio.sleep(0)
                router.resume(name)

        async def leave():
            for number, pause in leavers:
                for _ in range(pause):
                    await asyncio.sleep(0)
                tasks[number % calls].cancel()

        async with routing(fleet, capacity=capacity, probe_s=0.0005) as router:
            sampling = replace(SAMPLING, max_tokens=most)
            tasks = [
                asyncio.create_task(call(router, str(number), sampling)) for number in range(calls)
            ]
            await asyncio.gather(disturb(), leave())
            outputs = await asyncio.gather(*tasks, return_exceptions=True)
            return outputs, fleet, router

    outputs, fleet, router = run(scenario)
    plan = MODEL.plan(PROMPT, most)
    left = {number % calls for number, _ in leavers}

    for number, output in enumerate(outputs):
        if number in left and isinstance(output, asyncio.CancelledError):
            continue
        assert (plan.ids, plan.finish) == (output.ids, output.finish)
        assert logprobs(PROMPT, output.ids) == output.logprobs
        assert len(output.ids) == sum(span.tokens for span in output.spans)
        assert array("i", PROMPT).tolist() == output.echo
    for engine in fleet:
        assert engine.most_running <= capacity
        for ask in engine.asks:
            assert (PROMPT + array("i", plan.ids).tobytes()).startswith(ask.input_ids)
        assert 0 == engine.running
    assert [0] * len(fleet) == [engine.in_flight for engine in router.engines()]
    assert 0 == router.waiting
