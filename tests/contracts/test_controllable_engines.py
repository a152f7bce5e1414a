"""The contract of a cell's engine, kept by the embedded one and by what stands before servers.

Real servers are asked in tests/hardware/engines; here one is played by an engine in this process.
"""

import asyncio
import itertools
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from tests.contracts import controllable_engine as suite
from tests.inference.support import serving, slow_engine
from tests.waiting import PATIENCE_S

from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.external.engine import ExternalEngine, ServerCapacity
from gyre.inference.external.process import ServerChild
from gyre.model.checkpoint import save
from gyre.types.errors import EngineError

CONTEXT = 2**14
FILLED = 2**8
FILLING = {suite.a_reply_ends_where_the_context_does_and_a_prompt_without_room_is_refused}
"""Promises that fill the context, which is a short one then."""
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Embedded:
    """A small random model, and another of the same shape."""

    tolerance = 1e-5
    long_tokens = CONTEXT - 64

    def __init__(self, folders, context=CONTEXT):
        self._folders = folders
        self._networks = networks(context)
        self._numbers = itertools.count()
        loop = slow_engine.loop(networks(context)["first"], kv_tokens=context)
        self.engine = EmbeddedEngine("embedded", loop)

    def ask(self, *, max_tokens):
        return slow_engine.ask(PROMPT, f"ask-{next(self._numbers)}", max_tokens=max_tokens)

    def folder(self, which):
        return self._folders / which

    def logprobs(self, which, prompt, output):
        return suite.reference(self._networks[which], prompt, output)


class Played:
    """What a server is told, told to an engine of our own."""

    def __init__(self, engine):
        self._engine = engine
        self.generate = engine.generate
        self.pause = engine.pause
        self.resume = engine.resume
        self.restore = engine.wake
        self.release = engine.offload
        self.close = engine.close

    async def answers(self):
        return (await self._engine.health()).ready

    async def abort(self, ask_id):
        await self._engine.cancel(ask_id)

    async def reload(self, folder, *, version, keep_kv):
        await self._engine.load(folder, version=version, keep_kv=keep_kv)

    async def receive(self, tensors, *, version, keep_kv):
        await self._engine.load(dict(tensors), version=version, keep_kv=keep_kv)

    async def version(self):
        return (await self._engine.health()).version


async def played(folders, how, kind=Played, context=CONTEXT):
    """A subject whose engine stands before a played server, and a process that does nothing."""
    subject = Embedded(folders, context)
    folder = Path(mkdtemp())
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    child = await ServerChild.start("played", command, {}, folder=folder)
    subject.engine = ExternalEngine(
        "played",
        kind(subject.engine),
        child,
        networks(context)["first"],
        ServerCapacity(context_tokens=context, blocks=context // 4, block_tokens=4),
        model="small",
        version=0,
        most_running=8,
        weights=how,
    )
    return subject


def networks(context=CONTEXT):
    seeds = {"first": 0, "second": 1}
    return {which: slow_engine.network(seed=seed, context=context) for which, seed in seeds.items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("weights")
    for which, network in networks().items():
        serving.write_model(place / f"{which}-plain", network)
        network.module.name_or_path = str(place / f"{which}-plain")
        save(network, place / which, version=1)
    return place


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small matrices are slower with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def keep(folders, promise, *more, how=None):
    async def scenario():
        context = FILLED if promise in FILLING else CONTEXT
        if how is None:
            subject = Embedded(folders, context)
        else:
            subject = await played(folders, how, context=context)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await promise(subject, *more)
        finally:
            await subject.engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("promise", suite.PROMISES, ids=lambda promise: promise.__name__)
def test_the_embedded_engine_keeps_the_promise_that(promise, folders):
    keep(folders, promise)


def test_the_embedded_engine_refuses_weights_that_are_not_what_they_say(folders, tmp_path):
    keep(folders, suite.weights_that_are_not_what_they_say_are_refused, tmp_path)


@pytest.mark.parametrize("how", ["disk", "memory"])
@pytest.mark.parametrize("promise", suite.PROMISES, ids=lambda promise: promise.__name__)
def test_what_stands_before_a_server_keeps_the_promise_that(promise, how, folders):
    keep(folders, promise, how=how)


def test_what_stands_before_a_server_refuses_weights_that_are_not_what_they_say(folders, tmp_path):
    keep(folders, suite.weights_that_are_not_what_they_say_are_refused, tmp_path, how="disk")


class Torn(Played):
    """Fails in the middle of a load, once."""

    async def reload(self, folder, *, version, keep_kv):
        self.reload = super().reload
        raise EngineError("torn")


def test_a_server_that_failed_half_way_through_a_load_serves_nobody_until_the_next(folders):
    async def scenario():
        subject = await played(folders, "disk", Torn)
        engine = subject.engine
        running = suite.Said(subject.ask(max_tokens=subject.long_tokens))
        chunks = engine.generate(running.ask)
        running.take(await anext(chunks))
        with pytest.raises(EngineError, match="torn"):
            await engine.load(subject.folder("second"), version=1)
        with pytest.raises(EngineError, match="part of version 1"):
            [running.take(chunk) async for chunk in chunks]
        with pytest.raises(EngineError, match="part of version 1") as refused:
            await suite.answered(subject)
        health = await engine.health()
        await engine.load(subject.folder("second"), version=1)
        said = await suite.answered(subject)
        await engine.close()
        return health, refused.value.retryable, subject, said

    health, retryable, subject, said = asyncio.run(scenario())

    assert (False, "its server may have part of version 1", 0) == (
        health.ready,
        health.detail,
        health.version,
    )
    assert retryable
    assert {1} == set(said.versions)
    suite.assert_of(subject, said, "second")


def test_an_id_may_be_asked_again_as_soon_as_its_reader_has_left(folders):
    async def scenario():
        subject = await played(folders, "disk")
        ask = subject.ask(max_tokens=subject.long_tokens)
        async with aclosing(subject.engine.generate(ask)) as chunks:
            await anext(chunks)
        again = replace(ask, sampling=replace(ask.sampling, max_tokens=3))
        found = [one async for one in subject.engine.generate(again)]
        await subject.engine.close()
        return found

    assert "length" == asyncio.run(scenario())[-1].finish
