"""Folders of runs whose proxies are real processes, and whoever controls them."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress

import aiohttp
from tests.flows.live.running import SCHEDULE, tasks_of, write_run
from tests.waiting import PATIENCE_S

from gyre.cluster.process import holds_log
from gyre.controller.process_specs import proxy_plan
from gyre.controller.proxy_processes import ProxyLauncher, ProxyProcess, ProxyProcesses
from gyre.controller.run_dir import RunDir, read_run
from gyre.storage.files import PROXY
from gyre.testing.emulated_cell import tables
from gyre.types.ids import named

NOWHERE = "gyre=http://127.0.0.1:9"
"""An engine that is never asked for anything."""


class ProxyController:
    """Controls a proxy, once it has started one or taken one over."""

    def __init__(self, places, session):
        self.launcher = ProxyLauncher(places, session)
        self.proxies = []

    async def start(self, plan):
        self.proxies = [await ProxyProcess.start(self.launcher, plan)]
        return self.proxies[0]

    async def take_over(self, plan, *, before, now):
        self.proxies = [await ProxyProcess.take_over(self.launcher, plan, before=before, now=now)]
        return self.proxies[0]


class Run:
    """The folder of a run, and whoever controls its proxy now."""

    def __init__(self, folder, *, shards=1):
        tasks = tasks_of(folder, seed=1, mean_s=1)
        found = tables(folder / "run", tasks, {"schedule": SCHEDULE, "proxy": {"shards": shards}})
        self.shards = shards
        self.config = read_run(write_run(folder / "run.toml", found)).config
        self.places = RunDir(run=folder / "run", share=folder)
        self.places.pids.mkdir(parents=True)

    @property
    def plan(self):
        return proxy_plan(self.config, self.places, engines=(NOWHERE,), context_tokens=4096)

    @property
    def pid(self):
        return self.pid_of(0)

    def pid_of(self, shard):
        return int(self.places.pid(named(PROXY, shard)).read_text())

    @property
    def is_alive(self):
        return self.lives(0)

    def lives(self, shard):
        return holds_log(self.pid_of(shard), self.places.log(named(PROXY, shard)))

    @asynccontextmanager
    async def controlled(self, token):
        """By somebody who shows this token."""
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            controller = ProxyController(self.places, session)
            yield controller
            await self._record(controller.proxies)

    @asynccontextmanager
    async def controlled_shards(self, token):
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            made = ProxyProcesses(self.places, session, shards=self.shards)
            yield made
            await self._record(made._all)

    async def _record(self, proxies):
        """Children that another controller has ended: while there is a loop that can be told."""
        for shard, one in enumerate(proxies):
            if not holds_log(one.pid, self.places.log(named(PROXY, shard))):
                await one._process.wait()

    def end(self):
        for shard in range(self.shards):
            with suppress(OSError, ValueError):
                if self.lives(shard):
                    os.kill(self.pid_of(shard), signal.SIGKILL)


async def by(run, token, scenario):
    async with asyncio.timeout(PATIENCE_S), run.controlled(token) as controller:
        return await scenario(controller)
