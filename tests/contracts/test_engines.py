"""The engine contract, kept by the fakes, by both adapters over HTTP, and by our own engine."""

import asyncio
import importlib.util
import itertools
import json
import sys
from array import array
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.inference.support import serving, slow_engine
from tests.waiting import PATIENCE_S, until

from gyre.inference.clients.http import client
from gyre.inference.clients.registry import connect, read_address
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.testing.processes import EngineProcess
from gyre.testing.script import Script, after
from gyre.testing.scripted_engine import ScriptedEngine
from gyre.testing.timed_engine import TimedEngine
from gyre.testing.timed_script import TimedReply
from gyre.testing.tokenizer import write_tokenizer
from gyre.types.protocols import KvMovable

SUITE = Path(__file__).with_name("engine.py")


def load_suite():
    spec = importlib.util.spec_from_file_location("engine_contract", SUITE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


suite = load_suite()
ENDLESS = 2**16
"""Tokens that take the small model minutes."""
SERVERS = {
    "sglang": {"wire": "sglang"},
    "sglang incremental": {"wire": "sglang", "incremental": True},
    "vllm": {"wire": "vllm"},
}


class InProcess(suite.FollowsTheScript):
    says_version = True

    def __init__(self):
        self.engine = ScriptedEngine("fake", suite.MODEL)

    async def spoil(self, fault):
        self.engine.fault = fault

    async def load(self, version):
        self.engine.version = version

    async def wait_aborted(self, count):
        assert count <= len(self.engine.aborted)

    def prompts(self):
        return [ask.input_ids for ask in self.engine.asks]


class Steered(suite.FollowsTheScript):
    """Follows the script and every order; it fails when it is ordered to, and not otherwise."""

    says_version = True
    promises = (
        *suite.EVERY_ENGINE,
        suite.the_text_of_a_reply_is_what_was_scripted,
        suite.an_empty_reply_is_an_answer,
    )

    def __init__(self):
        endless = after("go on", TimedReply(ids=(7,) * ENDLESS, reply_s=300.0))
        script = Script([endless, *suite.script().rules])
        self.engine = TimedEngine("steered", script, suite.CODER)

    async def endless(self):
        return suite.ask("go on", max_tokens=ENDLESS)

    async def load(self, version):
        await self.engine.load({}, version=version)

    async def wait_aborted(self, count):
        capacity = await self.engine.capacity()
        assert (0, 0) == (capacity.running, capacity.waiting)


class OverHttp(suite.FollowsTheScript):
    def __init__(self, engine, process, session):
        self.engine = engine
        self._process = process
        self._session = session
        self.says_version = process.address.startswith("sglang")

    async def steer(self, path, data):
        url = f"{self._process.url}/script/{path}"
        async with self._session.post(url, data=json.dumps(data)) as response:
            return await response.json()

    async def spoil(self, fault):
        await self.steer("fault", None if fault is None else asdict(fault))

    async def load(self, version):
        await self.steer("version", version)

    async def wait_aborted(self, count):
        already = len((await self.steer("state", None))["aborted"])
        running = len((await self.steer("state", None))["running"])
        await self.steer("aborted", already + min(count, running))

        async def is_idle():
            return not (await self.steer("state", None))["running"]

        await until(is_idle, "no ask runs")

    def prompts(self):
        return [array("i", ask.input_ids).tobytes() for ask in self._process.asks()]


class Embedded:
    """A small random model: what it says is known from the slow engine beside its own tests."""

    model = "small"
    says_version = True
    tolerance = 1e-5
    stop_ids = tuple(range(0, slow_engine.VOCABULARY, 9))
    """So many that a reply soon meets one."""

    def __init__(self):
        self._network = slow_engine.network(context=ENDLESS)
        self._numbers = itertools.count()
        self.engine = EmbeddedEngine("embedded", slow_engine.loop(self._network, kv_tokens=ENDLESS))

    def ask(self, said, *, sampled=(), max_tokens=20):
        prompt = [ord(letter) % slow_engine.VOCABULARY for letter in said]
        stops = said == "say hello"
        return slow_engine.ask(
            [*prompt, *sampled],
            f"ask-{next(self._numbers)}",
            max_tokens=min(max_tokens, 40 if stops else 20) - len(sampled),
            stop_ids=self.stop_ids if stops else (),
            seed=len(said) + len(sampled),
        )

    def expected(self, asked):
        return slow_engine.expected(self._network, asked)

    async def endless(self):
        return slow_engine.ask([1, 2, 3], "endless", max_tokens=ENDLESS)

    async def load(self, version):
        await self.engine.load(slow_engine.weights(self._network), version=version)

    async def wait_aborted(self, count):
        capacity = await self.engine.capacity()
        assert (0, 0) == (capacity.running, capacity.waiting)


class Served(Embedded):
    """The same model behind `gyre serve`, reached as if it were one of the engines it speaks as."""

    _asked = itertools.count()

    def __init__(self, engine, kind, process, folder, session):
        self._network = slow_engine.network(context=ENDLESS)
        self._numbers = self._asked
        self._process = process
        self._folder = folder
        self._session = session
        self.engine = engine
        self.model = "small" if kind == "vllm" else str(folder)
        self.says_version = kind != "vllm"

    async def endless(self):
        return slow_engine.ask([1, 2, 3], f"endless-{next(self._asked)}", max_tokens=ENDLESS)

    async def load(self, version):
        order = {"model_path": str(self._folder), "weight_version": str(version)}
        url = f"{self._process.url}/update_weights_from_disk"
        async with self._session.post(url, data=json.dumps(order)) as response:
            assert (await response.json())["success"]

    async def wait_aborted(self, count):
        async def is_idle():
            return not await self._num_requests()

        await until(is_idle, "no request runs or waits")

    async def _num_requests(self):
        async with self._session.get(f"{self._process.url}/server_info") as response:
            info = await response.json()
        return info["num_running_reqs"] + info["num_queue_reqs"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    serving.write_model(folder, slow_engine.network(context=ENDLESS))
    options = ("--kv-tokens", str(ENDLESS), "--name", "small", "--device", "cpu")
    with serving.ServeProcess(folder, *options) as process:
        yield process, folder


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    tokenizer = write_tokenizer(folder) / "tokenizer.json"
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                EngineProcess(
                    script=f"{SUITE}:script",
                    tokenizer=tokenizer,
                    log=folder / f"{name}.jsonl",
                    **options,
                )
            )
            for name, options in SERVERS.items()
        }


@asynccontextmanager
async def over_http(process):
    async with client() as session:
        engine = await connect(read_address(process.address), session)
        subject = OverHttp(engine, process, session)
        await subject.load(0)
        try:
            yield subject
        finally:
            await subject.spoil(None)
            await engine.close()


@pytest.mark.parametrize("promise", suite.SCRIPTED, ids=lambda promise: promise.__name__)
def test_the_fake_keeps_the_promise_that(promise):
    """T01, T07, T26, T27."""
    asyncio.run(promise(InProcess()))


@pytest.mark.parametrize("promise", Steered.promises, ids=lambda promise: promise.__name__)
def test_the_fake_that_takes_orders_keeps_the_promise_that(promise):
    """T01, T07, T26."""

    async def keep():
        async with asyncio.timeout(PATIENCE_S):
            await promise(Steered())

    asyncio.run(keep())


@pytest.mark.parametrize("promise", suite.SCRIPTED, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", SERVERS)
def test_an_adapter_keeps_the_promise_that(promise, name, servers):
    """T01, T07, T26, T27."""

    async def keep():
        async with asyncio.timeout(PATIENCE_S), over_http(servers[name]) as subject:
            await promise(subject)

    asyncio.run(keep())


@pytest.mark.parametrize("promise", suite.EVERY_ENGINE, ids=lambda promise: promise.__name__)
def test_the_embedded_engine_keeps_the_promise_that(promise):
    """T01, T07."""

    async def keep():
        subject = Embedded()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await promise(subject)
        finally:
            await subject.engine.close()

    asyncio.run(keep())


@pytest.mark.slow
@pytest.mark.parametrize("promise", suite.EVERY_ENGINE, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", ["gyre", "sglang", "vllm"])
def test_the_served_engine_keeps_the_promise_that(promise, kind, server):
    """T01, T07."""
    process, folder = server

    async def keep():
        async with asyncio.timeout(PATIENCE_S), client() as session:
            engine = await connect(read_address(f"{kind}={process.url}"), session)
            await promise(Served(engine, kind, process, folder, session))
            await engine.close()

    asyncio.run(keep())


@pytest.mark.parametrize(("name", "kind"), [("sglang", "SglangEngine"), ("vllm", "VllmEngine")])
def test_an_engine_is_asked_what_it_is_when_nobody_says(name, kind, servers):
    async def ask():
        async with client() as session:
            engine = await connect(read_address(servers[name].url), session)
            return engine.name, type(engine).__name__

    assert (f"127.0.0.1:{servers[name].port}", kind) == asyncio.run(ask())


@pytest.mark.slow
def test_our_own_engine_is_known_by_what_it_says(server):
    async def ask():
        async with client() as session:
            return await connect(read_address(server[0].url), session)

    assert isinstance(asyncio.run(ask()), KvMovable)
