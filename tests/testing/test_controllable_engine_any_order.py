"""Orders to the scripted engine in any order: replies stay exact, and no block is lost."""

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from tests.testing.support.virtual_time import Reader, hurried
from tests.testing.test_controllable_engine import TEN, ask, made

from gyre.testing.timed_script import Pace
from gyre.types.errors import EngineDraining, EngineError, OutOfMemory

PACE = Pace(chunk_tokens=3, prefill_s=0.05)
SMALL = 64
"""Tokens that the engine has room for: two calls and a little more."""
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abcd")),
        st.tuples(st.just("cancel"), st.integers(0, 7)),
        st.tuples(st.just("pin"), st.integers(0, 7)),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("hand over"), st.integers(0, 3)),
        st.tuples(st.just("load"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, 11.0])),
        st.tuples(st.sampled_from(["pause", "resume", "offload", "wake"]), st.none()),
    ),
    max_size=25,
)


class World:
    """Two engines, what was asked of the first, and what is pinned there."""

    def __init__(self):
        self.engine = made(pace=PACE, kv_tokens=SMALL, capacity=3)
        self.other = made(pace=PACE, kv_tokens=SMALL, name="b")
        self.readers = []
        self.pins = []
        self.version = 0

    async def do(self, order, argument):
        match order:
            case "ask":
                name = str(len(self.readers))
                self.readers.append(Reader(self.engine, ask(f"slow {argument}", name)))
                await asyncio.sleep(0)
            case "cancel":
                await self.engine.cancel(str(argument))
            case "pin":
                self.pins.append(await self.engine.pin(str(argument)))
            case "release" if self.pins:
                await self.engine.release(self.pins.pop(argument % len(self.pins)))
            case "hand over" if self.pins:
                blocks = await self.engine.export(self.pins[argument % len(self.pins)])
                await self.other.release(await self.other.import_(blocks))
            case "load":
                self.version += 1
                await self.engine.load({}, version=self.version, keep_kv=argument)
            case "wait":
                await asyncio.sleep(argument)
            case "pause" | "resume" | "offload" | "wake":
                await getattr(self.engine, order)()

    async def end(self):
        """All that was asked is over, and all that was held is let go."""
        await self.engine.wake()
        await self.engine.resume()
        for pin in self.pins:
            await self.engine.release(pin)
        return await asyncio.gather(*(one.task for one in self.readers), return_exceptions=True)


async def flow(operations):
    world = World()
    for order, argument in operations:
        with suppress(EngineError, OutOfMemory):
            await world.do(order, argument)
    return await world.end(), await world.engine.capacity()


@given(OPERATIONS)
def test_every_call_ends_exactly_and_every_block_is_free_at_last(operations):
    ended, capacity = hurried(flow(operations))

    for one in ended:
        if not isinstance(one, Reader):
            assert isinstance(one, EngineDraining)
        elif one.finish == "abort":
            assert list(TEN[: len(one.ids)]) == one.ids
        else:
            assert (list(TEN), "stop") == (one.ids, one.finish)
            assert sorted(one.versions) == one.versions
    assert (0, 0) == (capacity.running, capacity.waiting)
    assert capacity.blocks == capacity.available_blocks
