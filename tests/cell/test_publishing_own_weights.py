"""A cell whose network has what is published serves it without reading it again."""

import asyncio
from contextlib import contextmanager
from shutil import rmtree

import msgspec
import pytest
import torch

from gyre.cell.api import CellApi
from gyre.cell.protocol import LoadRequest
from gyre.cell.training_worker import SingleRankWorker
from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.engine.engine import EngineCore
from gyre.model.loader import load_network
from gyre.model.registry import model_folder
from gyre.model.weights import digest
from gyre.trainer.distributed.cell_comm import CellComm
from gyre.trainer.trainer import Trainer
from gyre.transports.shared_memory import SharedTransport
from gyre.types.errors import CellError, ExposureGone, ModelError


class Posted:
    """An order without a network, and its answer."""

    method, headers = "POST", {}

    def __init__(self, name, body):
        self.path = f"/cell/{name}"
        self._body = body
        self.answered = None

    async def body(self, *, most_bytes, within_s):
        return msgspec.json.encode(self._body)

    async def answer(self, status, body):
        self.answered = status, msgspec.json.decode(body)


class Other:
    """An engine that is not the embedded one, as a server in a process of its own is not."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)


class Cell:
    """An engine and a trainer of one network, and what is ordered of them."""

    def __init__(self, folder, *, served=False, trains=True):
        self.network = load_network(model_folder("tiny"))
        loop = EngineCore(self.network, EngineConfig(capacity=1, kv_tokens=256), model="tiny")
        engine = EmbeddedEngine("cell-0", loop)
        self.engine = Other(engine) if served else engine
        transport = SharedTransport(folder, owner="cell-0")
        self.trainer = Trainer(
            self.network,
            section=TrainerConfig(),
            objective=LossConfig(),
            optimizer=OptimizerConfig(),
            version=3,
        )
        between = CellComm(folder / "store", cell=0, timeout_s=180.0)
        self.learning = SingleRankWorker(self.trainer, between, transport=transport, cell=0)
        learning = self.learning if trains else None
        self.orders = CellApi(self.engine, self.network, learning, transport)

    async def ordered(self, name, body):
        posted = Posted(name, body)
        await self.orders.answer(posted)
        return posted

    async def load(self, folder, version, digest):
        load = LoadRequest(folder=str(folder), version=version, digest=digest)
        posted = await self.ordered("load", load)
        health = await self.engine.health()
        return posted.answered[1]["digest"], health.version

    async def refused(self, folder, version, digest):
        """Whether it asks for the folder, which is not there."""
        before = (await self.engine.health()).version
        with pytest.raises((CellError, ModelError), match=str(folder)):
            await self.load(folder, version, digest)
        return before == (await self.engine.health()).version


@contextmanager
def cell(folder, **kinds):
    made = Cell(folder, **kinds)
    try:
        yield made
    finally:
        made.orders.close()
        asyncio.run(made.engine.close())


def changed(network):
    """Other weights are in it, as an engine loads them."""
    with torch.no_grad():
        next(network.module.parameters()).add_(1.0)


def test_weights_that_the_network_has_are_served_without_their_folder(tmp_path):
    with cell(tmp_path) as one:
        saved = one.learning.save(tmp_path / "v3", 3)
        rmtree(tmp_path / "v3")
        found = asyncio.run(one.load(tmp_path / "v3", 3, saved.digest))

        assert (saved.digest, 3) == found
        assert saved.digest == digest(one.network)


def test_a_version_that_is_not_the_trainers_is_never_adopted(tmp_path):
    with cell(tmp_path) as one:
        now = digest(one.network)
        for version in (2, 4):
            assert asyncio.run(one.refused(tmp_path / "nowhere", version, now))


def test_weights_of_another_digest_are_read_and_not_adopted(tmp_path):
    with cell(tmp_path) as one:
        saved = one.learning.save(tmp_path / "v3", 3)
        changed(one.network)
        missing = asyncio.run(one.refused(tmp_path / "nowhere", 3, saved.digest))
        found = asyncio.run(one.load(tmp_path / "v3", 3, saved.digest))

        assert missing
        assert (saved.digest, 3) == found
        assert saved.digest == digest(one.network)


@pytest.mark.parametrize("kinds", [{"trains": False}, {"served": True}])
def test_who_shares_no_network_with_a_trainer_reads_the_folder(tmp_path, kinds):
    """A standalone engine has no trainer, and a server reads for itself."""
    with cell(tmp_path, **kinds) as one:
        saved = one.learning.save(tmp_path / "v3", 3)
        found = asyncio.run(one.load(tmp_path / "v3", 3, saved.digest))
        rmtree(tmp_path / "v3")
        missing = asyncio.run(one.refused(tmp_path / "v3", 3, saved.digest))

        assert missing
        assert (saved.digest, 3) == found


def test_a_step_that_is_taken_meanwhile_is_not_served_as_the_version_before(tmp_path, monkeypatch):
    with cell(tmp_path) as one:
        load = one.engine.load

        async def stepped(*args, **kwargs):
            one.trainer.version = 4
            await load(*args, **kwargs)

        monkeypatch.setattr(one.engine, "load", stepped)
        with pytest.raises(CellError, match="version 3 was stepped over"):
            asyncio.run(one.load(tmp_path / "nowhere", 3, digest(one.network)))


def test_a_load_that_comes_late_never_takes_an_engine_back(tmp_path):
    """FAULTS 25: its order was given up and another followed, while the cell was at it still."""

    async def scenario(one):
        reading, go_on, load = asyncio.Event(), asyncio.Event(), one.engine.load

        async def slow(source, **how):
            if how["version"] == 4:
                reading.set()
                await go_on.wait()
            await load(source, **how)

        one.engine.load = slow
        first = asyncio.ensure_future(one.load(tmp_path / "v3", 4, saved.digest))
        await reading.wait()
        second = asyncio.ensure_future(one.load(tmp_path / "v3", 5, saved.digest))
        for _ in range(10):
            await asyncio.sleep(0)
        between = asyncio.ensure_future(one.load(tmp_path / "v3", 4, saved.digest))
        go_on.set()
        await asyncio.gather(first, second, between, return_exceptions=True)
        with pytest.raises(ExposureGone, match="version 4: the engine has 5"):
            await one.load(tmp_path / "v3", 4, saved.digest)
        return second.result(), between.exception(), (await one.engine.health()).version

    with cell(tmp_path, served=True, trains=False) as one:
        saved = one.learning.save(tmp_path / "v3", 3)
        second, between, version = asyncio.run(scenario(one))

    assert (saved.digest, 5) == second
    assert isinstance(between, ExposureGone)
    assert 5 == version


def test_a_load_that_comes_late_leaves_the_network_to_the_trainer(tmp_path):
    """SPEC 3.1: during a batch the weights are fixed."""

    async def scenario(one):
        await one.ordered("enter", {})
        changed(one.network)
        before = digest(one.network)
        with pytest.raises(ExposureGone, match="the trainer has the network"):
            await one.load(tmp_path / "v3", 3, saved.digest)
        is_same = before == digest(one.network)
        await one.ordered("leave", {"keep_sum": False})
        return is_same, await one.load(tmp_path / "v3", 3, saved.digest)

    with cell(tmp_path) as one:
        saved = one.learning.save(tmp_path / "v3", 3)
        is_same, after = asyncio.run(scenario(one))

    assert is_same
    assert (saved.digest, 3) == after
