"""The proxy as a simulated process: the real application, its real logs, and simulated engines."""

import asyncio
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from tests.chaos_sim.loop import NODE

from gyre.net.http_server import told_to_stop
from gyre.proxy import main
from gyre.proxy.routing.router import Router
from gyre.proxy.spec import ProxySpec
from gyre.storage.call_log import SUFFIX
from gyre.storage.files import read_plan
from gyre.storage.wal import WalWriter
from gyre.testing.renderer import ByteRenderer, reply_ids
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName, named, shard_of
from gyre.types.sampling import Chunk, EngineHealth

CHUNK = 4
"""Tokens that come together."""


class InlineCommit(WalWriter):
    """The same without a thread: a sync takes a moment of made-up time."""

    def __init__(self, journal, *, rng):
        self._rng = rng
        super().__init__(journal)

    def _begin(self):
        pass

    def _hand_over(self, batch):
        self._loop.call_later(self._rng.expovariate(1000.0), self._do, batch)

    def _do(self, batch):
        self._finish(batch, self._commit(batch))

    def _end(self):
        pass


class Proxies:
    """Proxy processes: the real one's whole life, with what is around it made up."""

    def __init__(self, machine, network, cells, watch, rng):
        self._machine = machine
        self._network = network
        self._cells = cells
        self._watch = watch
        self._rng = rng

    def start(self, name, arguments, log):
        plan = read_plan(Path(arguments[-1]), ProxySpec)

        async def live(process):
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
            await main.serve(plan, lambda started: process.say_ready(started.url))

        return self._machine.start(name, live, files=partial(_is_own, plan), lasts=True)

    def surroundings(self):
        """By name, what stands in the real module where something of the machine did."""
        return {
            "load_renderer": lambda *said, **how: ByteRenderer(),
            "WalWriter": lambda journal: InlineCommit(journal, rng=self._rng),
            "Router": self._router,
            "client": self._network.session,
            "connect": self._connect,
            "serve_until_told": self._serve_until_told,
            "gc": _NoThresholds,
            "_many_files": lambda: None,
        }

    def _router(self, engines, settings, *, routes):
        clock = asyncio.get_running_loop().time
        return Router(engines, settings, routes=routes, clock=clock, jitter=self._rng)

    async def _connect(self, address, session):
        return SimEngine(self._network, self._cells, self._watch, address, session, self._rng)

    async def _serve_until_told(self, app, on, *, on_start):
        told = told_to_stop()
        self._network.listen(f"127.0.0.1:{on.number}", NODE.get(), app)
        on_start()
        await told.wait()


class _NoThresholds:
    """Whose process it really is decides how often garbage is looked for."""

    @staticmethod
    def set_threshold(*numbers):
        pass


def _is_own(plan, path):
    """Whether it is this shard that writes the file."""
    if path.parts[1] == "executions":
        name = path.name.partition(SUFFIX)[0]
        return shard_of(name, plan.proxy.shards) == plan.shard
    return path.name == named("commits", plan.shard)


class SimEngine:
    """The engine of a simulated cell, as the proxy reaches it."""

    def __init__(self, network, cells, watch, address, session, rng):
        self._network = network
        self._cells = cells
        self._watch = watch
        self._node = NODE.get()
        self._netloc = urlsplit(address.url).netloc
        self._session = session
        self._rng = rng
        self.name = EngineName(self._netloc)

    async def generate(self, ask):
        cell = await self._reached()
        if not cell.is_serving:
            raise EngineError(f"engine {self.name}: does not serve")
        prompt = memoryview(ask.input_ids).cast("i").tolist()
        planned = self._watch.reply(ask.execution, prompt)
        left = planned[: ask.sampling.max_tokens]
        for start in range(0, len(left), CHUNK):
            await self._turn(cell)
            ids = left[start : start + CHUNK]
            logprobs = [self._watch.emitted(cell, ask.execution, one) for one in ids]
            is_last = start + CHUNK >= len(left)
            yield Chunk(
                ids=ids,
                logprobs=logprobs,
                version=cell.engine_version,
                finish="stop" if is_last else None,
                prompt_ids=prompt if start == 0 else None,
            )

    async def _turn(self, cell):
        """The next tokens are sampled, if the cell is there and can."""
        await asyncio.sleep(self._rng.uniform(0.01, 0.08))
        while cell.node.is_stopped or self._network.is_cut(self._node, cell.node):
            await asyncio.sleep(0.5)
        if cell.node.is_dead or not cell.is_serving:
            raise EngineError(f"engine {self.name}: the stream was cut")
        if self._network.loses():
            raise EngineError(f"engine {self.name}: the stream was cut on its way")

    async def health(self):
        cell = await self._reached()
        while cell.node.is_stopped or self._network.is_cut(self._node, cell.node):
            await asyncio.sleep(0.5)
        return EngineHealth(ready=cell.is_serving, version=cell.engine_version)

    async def close(self):
        pass

    async def _reached(self):
        try:
            await self._network.reach(self._node, self._netloc)
        except aiohttp.ClientConnectionError as error:
            gone = EngineError(f"engine {self.name}: {error}")
            gone.__cause__ = error.__cause__
            raise gone from error.__cause__
        cell = self._cells.by_netloc[self._netloc]
        if self._session.headers.get("Authorization") != f"Bearer {cell.key}":
            raise EngineError(f"engine {self.name}: 401", retryable=False)
        return cell


def reply_of(execution, turn, words):
    """What the policy says in one place of a conversation."""
    return reply_ids(f"{execution} {turn} " + "x" * words)
