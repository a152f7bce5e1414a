"""Engines that hang, crawl, refuse and talk nonsense while agents talk through a real proxy."""

import pytest
from tests.chaos.relay import relay
from tests.chaos.talking import assert_exact, count, steer, talked
from tests.waiting import patience, until

pytestmark = pytest.mark.slow

AGENTS, TURNS = 10, 8
CALLS = AGENTS * TURNS
PACE = {"chunk_tokens": 8, "chunk_delay_s": 0.004}


def assert_all_well(stage, talk, engines):
    """No agent saw anything, and every call is one exact record; how many have two engines."""
    assert [] == talk.refused
    return assert_exact(stage.folder / "run", engines, agents=AGENTS, turns=TURNS)


def test_a_frozen_engine_is_left_with_the_tokens_it_has_sent(stage):
    """FAULTS 3: it hangs with calls in the middle of their replies."""
    engines = [stage.engine(**PACE) for _ in range(2)]
    proxy = stage.proxy(*engines, options=("--idle", "0.4"))

    async def freeze(talk):
        await talk.wait_done(20, in_flight=AGENTS // 2)
        await midway(engines[0])
        engines[0].freeze()

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=freeze)
    engines[0].thaw()

    assert 0 < assert_all_well(stage, talk, engines)
    assert 1 <= count(proxy, "breaker_opens_total")


def test_an_engine_a_hundred_times_slower_is_not_taken_for_dead(stage):
    """FAULTS 4: its streams go on although each is silent for longer than the idle limit."""
    # Asked for its health it answers within half of that, however busy the machine is.
    idle_s = patience(8.0)
    slow = stage.engine("short", chunk_tokens=64, chunk_delay_s=1.1 * idle_s)
    quick = stage.engine("short", chunk_tokens=64, chunk_delay_s=0.011 * idle_s)
    proxy = stage.proxy(slow, quick, options=("--idle", str(idle_s), "--capacity", "3"))

    async def nothing(talk):
        await talk.wait_done(1)

    talk = talked(proxy, agents=AGENTS, turns=1, meanwhile=nothing)

    assert [] == talk.refused
    assert 0 == assert_exact(stage.folder / "run", [slow, quick], agents=AGENTS, turns=1)
    assert 3 <= len(slow.asks()) < len(quick.asks()), "most calls find the quick one"
    assert 3 <= sum(one > idle_s for one in talk.seconds)
    assert 0 == count(proxy, "reroutes_total") == count(proxy, "breaker_opens_total")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_storm_of_refusals_ends_in_fewer_than_twice_the_asks(stage, status):
    """FAULTS 5: one engine refuses everything from the middle of the load on."""
    engines = [stage.engine(**PACE) for _ in range(2)]
    proxy = stage.proxy(*engines)
    before = []

    async def storm(talk):
        await talk.wait_done(20, in_flight=AGENTS // 2)
        before.append(len(engines[0].asks()))
        await steer(engines[0], "fault", {"kind": "refuse", "status": status})

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=storm)
    asks = [len(engine.asks()) for engine in engines]

    assert_all_well(stage, talk, engines)
    assert before[0] < asks[0], "nothing was refused"
    assert sum(asks) < 2 * CALLS


GARBAGE = ["json", "lengths", "nan", "no ids", "die", "abort"]


@pytest.mark.parametrize("wire", ["sglang", "vllm"])
def test_garbage_is_asked_for_again_and_never_recorded(stage, wire):
    """FAULTS 2, 6: broken events, wrong lengths, no numbers, no ids, cuts: after any token."""
    engines = [stage.engine(wire=wire, **PACE) for _ in range(2)]
    proxy = stage.proxy(*engines)
    faults = [{"kind": kind, "after": after} for after in (0, 17) for kind in GARBAGE]

    async def spoil(talk):
        await talk.wait_done(5)
        for at, engine in enumerate(engines):
            # Sound answers between them, because who never finishes a call is given none.
            wrong = [one for fault in faults[at::2] for one in (fault, None, None, None)]
            await steer(engine, "faults", wrong)

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=spoil)
    spoiled = sum(len(engine.asks()) for engine in engines) - CALLS

    assert_all_well(stage, talk, engines)
    assert len(faults) // 2 <= spoiled <= len(faults), "each of them costs one more ask"


def test_a_slow_line_that_loses_connections_loses_no_call(stage):
    """FAULTS 8: small delayed pieces, and answers whose connection is reset at a random byte."""
    engines = [stage.engine(**PACE) for _ in range(2)]
    with relay(engines[0].port) as one, relay(engines[1].port) as other:
        proxy = stage.proxy(Relayed(one.port), Relayed(other.port))

        async def disturb(talk):
            await talk.wait_done(10, in_flight=AGENTS // 2)
            for line in (one, other):
                line.delay_s, line.piece_bytes = 0.002, 1024
            one.cuts, other.cuts = [700, 2100, 3500], [1400, 2800, 4200]

        talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=disturb)

    assert_all_well(stage, talk, engines)
    assert 6 == one.num_cut + other.num_cut
    assert 6 <= count(proxy, "reroutes_total")


def test_a_line_that_stops_forwarding_is_left_for_another(stage):
    """FAULTS 10: the connection stays open and nothing comes through it any more."""
    engines = [stage.engine(**PACE) for _ in range(2)]
    with relay(engines[0].port) as line:
        proxy = stage.proxy(Relayed(line.port), engines[1], options=("--idle", "0.4"))

        async def stall(talk):
            await talk.wait_done(20, in_flight=AGENTS // 2)
            await midway(engines[0])
            await until(line.is_drained, "what the engine has said")
            line.is_stalled = True

        talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=stall)

    assert 0 < line.num_stalled
    assert 0 < assert_all_well(stage, talk, engines)


async def midway(engine):
    """From now on its replies stop in their middle; returns when one of them has."""
    await steer(engine, "fault", {"kind": "stall", "after": 40})
    await steer(engine, "stalled", 1)


class Relayed:
    """An engine at the near end of a line."""

    def __init__(self, port):
        self.address = f"sglang=http://127.0.0.1:{port}"
