"""The embedded engine from the outside: many readers, orders between passes, and its end."""

import asyncio
import subprocess
import sys
from contextlib import aclosing

import pytest
from tests.inference.support.slow_engine import ask, expected, loop, network, told, weights
from tests.waiting import PATIENCE_S

from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.engine.model_runner import PlainForward
from gyre.types.errors import EngineDraining, EngineError, ModelError

ENDLESS = 2**16


def kept(promise):
    """Runs a coroutine function with a new engine, which is closed afterwards."""

    async def keep():
        model = network(context=ENDLESS)
        engine = EmbeddedEngine("embedded", loop(model, kv_tokens=ENDLESS))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await promise(engine, model)
        finally:
            await engine.close()

    asyncio.run(keep())


async def collect(engine, asked, into=None):
    answer = told() if into is None else into
    async for chunk in engine.generate(asked):
        answer.take(chunk)
    return answer


def endless(name="endless"):
    return ask([1, 2, 3], name, max_tokens=ENDLESS)


async def begin(engine, asked):
    """A task that reads the ask, of which the first tokens have come."""
    answer, begun = told(), asyncio.Event()

    async def read():
        async for chunk in engine.generate(asked):
            answer.take(chunk)
            begun.set()

    task = asyncio.create_task(read())
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task, answer


async def aborted(engine):
    """Whether no call is left in the engine."""
    found = await engine.capacity()
    return (found.running, found.waiting) == (0, 0)


def test_tokens_that_wait_for_a_reader_come_as_one_chunk():
    async def promise(engine, model):
        async with aclosing(engine.generate(ask([1], max_tokens=100))) as chunks:
            first = await anext(chunks)
            while not await aborted(engine):
                pass
            rest = [chunk async for chunk in chunks]

        assert len(rest) <= 1
        assert 100 == len(first.ids) + sum(len(chunk.ids) for chunk in rest)

    kept(promise)


def test_cancelling_gives_the_tokens_so_far_and_ends_the_reader():
    async def promise(engine, model):
        task, answer = await begin(engine, endless())
        chunks = await engine.cancel("endless")
        await task
        ids = [one for chunk in chunks for one in chunk.ids]

        assert "abort" == answer.finish
        assert ids == answer.ids
        assert ids[:9] == expected(model, ask([1, 2, 3], max_tokens=9)).ids[: len(ids)]
        assert () == await engine.cancel("endless")
        assert await aborted(engine)

    kept(promise)


def test_a_reader_that_never_reads_leaves_nothing_behind():
    async def promise(engine, model):
        async with aclosing(engine.generate(endless())):
            pass
        chunks = engine.generate(endless("other"))
        await anext(chunks)
        await chunks.aclose()

        assert await aborted(engine)

    kept(promise)


def test_an_id_in_use_is_refused_and_its_first_owner_goes_on():
    async def promise(engine, model):
        task, answer = await begin(engine, endless())
        with pytest.raises(EngineError, match="another ask"):
            await collect(engine, endless())
        before = len(answer.ids)
        await engine.cancel("endless")
        await task

        assert before <= len(answer.ids)

    kept(promise)


def test_a_prompt_that_is_too_long_is_refused_for_good():
    async def promise(engine, model):
        with pytest.raises(EngineError, match=f"{ENDLESS} tokens") as error:
            await collect(engine, ask([1] * ENDLESS))

        assert not error.value.retryable
        assert "length" == (await collect(engine, ask([1]))).finish

    kept(promise)


def test_no_token_is_sampled_between_pause_and_resume():
    async def promise(engine, model):
        task, answer = await begin(engine, endless())
        await engine.pause()
        one = await engine.pin("endless")
        two = await engine.pin("endless")
        assert one.num_tokens == two.num_tokens
        await engine.load(weights(network(seed=9)), version=5)
        await engine.resume()
        task_two, _ = await begin(engine, endless("other"))
        await engine.cancel("endless")
        await task
        await engine.cancel("other")
        await task_two

        assert [0, 5] == sorted(set(answer.versions))
        assert answer.versions == sorted(answer.versions)

    kept(promise)


def test_bad_weights_are_refused_and_calls_go_on():
    async def promise(engine, model):
        task, answer = await begin(engine, endless())
        with pytest.raises(ModelError):
            await engine.load({}, version=5)
        await engine.cancel("endless")
        await task

        assert {0} == set(answer.versions)
        assert 0 == (await engine.health()).version

    kept(promise)


def test_rest_ends_calls_and_refuses_asks_until_woken():
    async def promise(engine, model):
        task, answer = await begin(engine, endless())
        await engine.offload()
        await task

        assert "abort" == answer.finish
        assert not (await engine.health()).ready
        with pytest.raises(EngineDraining):
            await collect(engine, ask([1]))
        await engine.wake()
        assert expected(model, ask([1])).ids == (await collect(engine, ask([1]))).ids

    kept(promise)


def test_a_call_moves_to_another_engine_with_its_blocks():
    """SPEC 2.3: pinned, cancelled, exported, imported, continued, released."""

    async def promise(source, model):
        destination = EmbeddedEngine("other", loop(network(context=ENDLESS), kv_tokens=ENDLESS))
        task, _ = await begin(source, endless("a"))
        pin = await source.pin("a")
        ids = [one for chunk in await source.cancel("a") for one in chunk.ids]
        await task
        taken = await destination.import_(await source.export(pin))
        await source.release(pin)
        rest = ask([1, 2, 3, *ids], max_tokens=5, seed=5 + len(ids))
        answer = await collect(destination, rest)
        await destination.release(taken)
        await destination.close()

        assert expected(model, rest, context=ENDLESS).ids == answer.ids

    kept(promise)


def test_closing_ends_readers_and_refuses_everything_after():
    async def promise(engine, model):
        task, _ = await begin(engine, endless())
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await task
        with pytest.raises(EngineError, match="closed"):
            await collect(engine, ask([1]))
        with pytest.raises(EngineError, match="closed"):
            await engine.health()
        await engine.close()

    kept(promise)


class Breaking(PlainForward):
    """A forward with a bug of its own, which shows at the fifth pass."""

    count = 0

    def __call__(self, work, ids=None):
        self.count += 1
        if self.count == 5:
            raise KeyError("a bug")
        return super().__call__(work, ids)


def test_a_bug_breaks_the_engine_visibly():
    async def promise():
        engine = EmbeddedEngine("embedded", loop(network(), make_forward=Breaking))
        answer = told()
        with pytest.raises(EngineError, match="a bug") as error:
            await collect(engine, ask([1]), answer)
        assert error.value.retryable
        assert isinstance(error.value.__cause__, KeyError)
        with pytest.raises(EngineError, match="broken"):
            await engine.health()
        with pytest.raises(EngineError, match="broken"):
            await collect(engine, ask([1]))
        await engine.close()

    asyncio.run(promise())


def test_readers_in_other_threads_are_served_too():
    engine = EmbeddedEngine("embedded", loop(network()))
    model = network()
    first = asyncio.run(collect(engine, ask([1], "a")))
    second = asyncio.run(collect(engine, ask([2], "b")))
    asyncio.run(engine.close())

    assert expected(model, ask([1])).ids == first.ids
    assert expected(model, ask([2])).ids == second.ids


@pytest.mark.slow
def test_without_torch_the_hint_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
from gyre.types.errors import ConfigError
try:
    import gyre.inference.engine.async_engine
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "the embedded engine needs torch: pip install 'gyre-rl[torch]'" == done.stdout.strip()
