"""The trainer contract, kept by the trainer of one device in both kinds of sum, and by fakes."""

from contextlib import contextmanager

import pytest
import torch
from tests.contracts import trainer as suite
from tests.trainer.support.cases import network

from gyre.testing.trainers import ScriptedTrainer
from gyre.trainer.trainer import Trainer
from gyre.types.errors import CellError, NotFinite, OutOfMemory


@pytest.fixture(autouse=True)
def _deterministic_products_may_come(monkeypatch):
    """A trainer that is deterministic sets it for its whole process where it is not set."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Locals(suite.SmallTrainers):
    kind = Trainer
    model = network("llama")


class ExactLocals(Locals):
    deterministic = True


class Scripted(Locals):
    kind = ScriptedTrainer

    @contextmanager
    def without_room(self, trainer):
        trainer.next_faults.append("out of memory")
        yield


@pytest.mark.parametrize(
    ("fault", "error"),
    [("out of memory", OutOfMemory), ("not finite", NotFinite), ("lost", CellError)],
)
def test_the_fake_fails_as_it_is_told_and_then_goes_on(fault, error):
    def fails(trainer):
        trainer.next_faults.extend([None, fault])
        trainer.score(suite.OTHER)
        with pytest.raises(error, match="as was asked for"):
            suite.train(trainer, suite.OTHER)

    suite.changes_nothing(Scripted(), fails)


class ExactScripted(Scripted):
    deterministic = True


def test_exact_sums_of_the_fake_have_the_same_bits_in_any_order():
    sums = []
    for claims in ([suite.ONE, suite.OTHER, suite.WORSE], [suite.WORSE, suite.OTHER, suite.ONE]):
        trainer = ExactScripted().make()
        suite.train(trainer, *claims)
        sums.append(torch.cat(trainer.gradients))

    assert torch.equal(*sums)
    assert sums[0].any()


@pytest.mark.parametrize("promise", suite.EVERY_TRAINER, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", [Locals, ExactLocals, Scripted, ExactScripted])
def test_a_trainer_keeps_the_promise_that(kind, promise):
    promise(kind())
