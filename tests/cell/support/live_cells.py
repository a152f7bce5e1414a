"""Cells as real processes, asked over HTTP, and a recorded batch of claims for them to train on."""

import asyncio
import copy
import json
import os
import signal
import subprocess
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
from safetensors.torch import load_file
from tests.controller.support.forked_cells import fork_server
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene
from tests.waiting import PATIENCE_S

from gyre.batching.group_packer import packed
from gyre.cell.client import CellClient
from gyre.cell.spec import CellSpec
from gyre.config.sections import (
    EngineConfig,
    LimitsConfig,
    LossConfig,
    OptimizerConfig,
    TrainerConfig,
)
from gyre.model.checkpoint import save
from gyre.model.network import Network
from gyre.storage.files import write_plan

KEY = "the-token-of-the-run"
OPTIMIZER = OptimizerConfig(lr=1e-5, eps=1e-6)
"""Steps that leave some ratios within their bounds, and no whole step from rounding."""
CHANGE = 5e-2
"""How far changes of weights may be apart, relative to the largest: float32 weights near 1 tell
changes of 1e-5 to a percent, and a gradient that is missing turns some of them around."""
SCENARIO_S = PATIENCE_S
TIMEOUT_S = 3 * PATIENCE_S
"""Of groups of cells; longer than a scenario may take, so that none ends by it."""


class Batch:
    """A model in a folder, and claims whose rows were sampled by weights near to its own."""

    def __init__(self, folder, family="qwen3"):
        scenes = [a_scene(family, seed) for seed in range(2)]
        network = Network(copy.deepcopy(scenes[0].network.module).float())
        save(network, folder, version=0)
        self.model = folder
        self.claims = [
            claim
            for scene in scenes
            for one in scene.executions
            for claim in scene.claims([one], pack_tokens=24)
        ]
        self.bytes = [packed(one) for one in self.claims]


class Started:
    """The processes of some cells; of two numbers with one last digit each is that cell."""

    def __init__(self, folder, model, **changes):
        self.folder = folder
        self.share = folder / "share"
        self.share.mkdir()
        (folder / "token").write_text(KEY)
        self._model = model
        self._changes = changes
        self.processes = {}
        self.urls = {}

    def plan(self, number):
        cell = number % 10
        settings = {
            "name": f"cell-{number}",
            "cell": cell,
            "trains": True,
            "model": str(self._model),
            "version": 0,
            "device": "cpu",
            "dtype": "float32",
            "seed": cell,
            "temperature": 1.0,
            "threads": 1,
            "key_file": self.folder / "token",
            "share": self.share,
            "store": self.share / "store",
            "timeout_s": TIMEOUT_S,
            "engine": EngineConfig(capacity=2, kv_tokens=256),
            "trainer": TrainerConfig(logits_tokens=7, checkpoint=False),
            "objective": LossConfig(),
            "optimizer": OPTIMIZER if cell == 0 else None,
            "limits": LimitsConfig(),
        }
        return CellSpec(**(settings | self._changes))

    def start(self, *cells):
        """All at once, because each takes seconds."""
        for cell in cells:
            path = write_plan(self.folder / f"{cell}.json", self.plan(cell))
            born = fork_server("gyre.cell.main").fork(path, log=self.folder / f"{cell}.log")
            self.processes[cell] = born
        for cell in cells:
            assert self.processes[cell].is_ready(), (self.folder / f"{cell}.log").read_text()
            self.urls[cell] = self.processes[cell].url

    def kill(self, cell):
        self.processes[cell].kill()
        self.processes[cell].wait()

    def stop(self):
        for one in self.processes.values():
            one.terminate()
        for one in self.processes.values():
            try:
                one.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)

    def logs(self):
        return {path.name: path.read_text() for path in self.folder.glob("*.log")}

    def run(self, scenario):
        """What a scenario of clients by cell comes to; all cells that it leaves go home."""

        async def work():
            async with self.clients() as clients:
                try:
                    return await scenario(clients)
                finally:
                    for one in clients.values():
                        await one.leave(keep_sum=False)

        return asyncio.run(asyncio.wait_for(work(), SCENARIO_S))

    @asynccontextmanager
    async def clients(self, key=KEY):
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            yield {cell: CellClient(cell, url, session) for cell, url in self.urls.items()}


@contextmanager
def started(folder, model, *cells, **changes):
    made = Started(folder, model, **changes)
    try:
        made.start(*cells)
        yield made
    finally:
        made.stop()


async def posted(client, order, body):
    """Status and text of whatever is answered to these bytes."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{client.url}/cell/{order}", data=body) as answer,
    ):
        return answer.status, await answer.text()


async def train(client, batch, claim, lease=None, scores=None):
    number = claim if lease is None else lease
    return await client.train(
        batch.bytes[claim], lease=number, num_executions=NUM_EXECUTIONS, scores=scores
    )


async def join(clients, *cells):
    """They train, with the core's weights."""
    for cell in cells:
        await clients[cell].enter()
    exposed = await clients[0].expose()
    for cell in cells:
        if cell:
            await clients[cell].pull(exposed)


async def reduced(clients, epoch, leases):
    """What every member answers, errors included, in order of cells."""
    members = sorted(leases)
    orders = [clients[cell].reduce(epoch, members, leases) for cell in members]
    return await asyncio.gather(*orders, return_exceptions=True)


def of_version(exposed, version):
    """What was exposed, said to be of another version than it is."""
    parts = tuple(
        replace(one, exposure=replace(one.exposure, version=version)) for one in exposed.parts
    )
    return replace(exposed, version=version, parts=parts)


async def weights(client, folder):
    """Digest and tensors of a cell's trainer."""
    saved = await client.save(folder)
    return saved.digest, load_file(Path(folder) / "model.safetensors")


def moved(batch, tensors):
    """What has become of the weights that everybody began with."""
    began = load_file(batch.model / "model.safetensors")
    return {name: one - began[name] for name, one in tensors.items()}


def manifest_of(folder):
    return json.loads((Path(folder) / "gyre.json").read_text())
