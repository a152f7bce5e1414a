"""The training half of a cell, opened as a cell opens it: of one rank, of ranks, with the fake."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.cell.support.live_cells import Started
from tests.contracts import training_worker as suite
from tests.trainer.support.cases import network

from gyre.cell.main import open_learning, open_network
from gyre.cell.ranks.multi_rank_worker import open_ranked
from gyre.model.checkpoint import save
from gyre.model.network import Network
from gyre.transports.registry import open_transport

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    save(Network(network("qwen3").module.float()), folder, version=suite.VERSION)
    return folder


class SingleRanks:
    """Cells of one rank, which share the engine's network."""

    trainer_factory = None

    def __init__(self, folder, model, stack):
        self.folder = folder
        self._cells = Started(folder, model)
        self._stack = stack
        self._num_made = 0

    def make(self, cell=0):
        self._num_made += 1
        plan = replace(
            self._cells.plan(cell),
            name=f"cell-{cell}-{self._num_made}",
            version=suite.VERSION,
            trainer_factory=self.trainer_factory,
            optimizer=self._cells.plan(0).optimizer if cell != 1 else None,
        )
        worker = self._opened(plan)
        self._stack.callback(worker.drop)
        return worker

    def _opened(self, plan):
        transport = open_transport(
            plan.transport, owner=plan.name, host=plan.host, share=plan.share
        )
        self._stack.callback(transport.close)
        return open_learning(plan, open_network(plan), transport)


class ScriptedRanks(SingleRanks):
    """With the trainer that a run file names."""

    trainer_factory = "gyre.testing.trainers:scripted"


class RankGroups(SingleRanks):
    """A driver and its rank, which have weights of their own; more ranks are more processes."""

    def _opened(self, plan):
        worker = open_ranked(plan, open_network(plan))
        self._stack.callback(lambda: self.check(worker))
        return worker

    def check(self, worker):
        assert not worker.lost.done()


@pytest.mark.parametrize("promise", suite.EVERY_WORKER, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", [SingleRanks, ScriptedRanks, RankGroups])
def test_a_worker_keeps_the_promise_that(kind, promise, model, tmp_path):
    with ExitStack() as stack:
        promise(kind(tmp_path, model, stack))
