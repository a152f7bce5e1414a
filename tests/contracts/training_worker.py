"""What the training half of every cell promises to the cell's API; each promise is one function."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from tests.contracts.trainer import NUM_EXECUTIONS, ONE, OTHER

from gyre.cell.training_worker import TrainingWorker
from gyre.types.errors import CellError, CheckpointError
from gyre.types.training import Claim, ClaimReport

VERSION = 3
"""Of the weights that all cells begin with."""
T = TypeVar("T")


class Subject(Protocol):
    """Workers under test: all with one model, in cells that reach each other."""

    folder: Path

    def make(self, cell: int = 0) -> TrainingWorker:
        """At rest, as a cell begins; cell 1 is a satellite's, others are the core's."""
        ...


def awake(subject: Subject, cell: int = 0) -> TrainingWorker:
    worker = subject.make(cell)
    worker.reload()
    return worker


def train(worker: TrainingWorker, claim: Claim = ONE, *, lease: int = 1) -> ClaimReport:
    return worker.train(claim, lease=lease, num_executions=NUM_EXECUTIONS, scores=None)


def digest(subject: Subject, worker: TrainingWorker, name: str) -> str:
    """Of the weights that it saves."""
    return worker.save(subject.folder / name, None).digest


def together(*doing: Callable[[], T]) -> Sequence[T]:
    """What cells do that wait for each other."""
    with ThreadPoolExecutor(len(doing)) as threads:
        asked = [threads.submit(one) for one in doing]
    return [one.result() for one in asked]


def it_begins_at_rest_with_the_version_it_was_given(subject: Subject) -> None:
    worker = subject.make()
    with pytest.raises(CellError, match="rests"):
        train(worker)
    worker.reload()
    train(worker)

    assert (VERSION, None) == (worker.version, worker.failure)
    assert 1 <= worker.claims_at_once


def a_lease_is_in_the_sum_once(subject: Subject) -> None:
    worker = awake(subject)
    train(worker)
    with pytest.raises(CellError, match="lease 1 is in the sum already") as error:
        train(worker, OTHER)

    assert not error.value.retryable
    assert 0 == worker.reduce(0, [0], {0: [1]})


def a_sum_of_other_leases_is_sent_nowhere(subject: Subject) -> None:
    """SPEC 3.2."""
    worker = awake(subject)
    train(worker)
    train(worker, OTHER, lease=2)
    for leases in ([1], [1, 2, 3]):
        with pytest.raises(CellError, match="not of its leases"):
            worker.reduce(0, [0], {0: leases})

    assert 0 == worker.reduce(0, [0], {0: [2, 1]})


def a_step_is_from_the_version_that_was_meant(subject: Subject) -> None:
    worker = awake(subject)
    train(worker)
    with pytest.raises(CellError, match="has version 3") as error:
        worker.step(VERSION - 1)

    assert (VERSION, False) == (worker.version, error.value.retryable)
    report = worker.step(VERSION)
    assert (4, 4) == (report.version, worker.version)
    assert report.gradient_norm > 0


def a_step_and_a_clear_leave_no_lease(subject: Subject) -> None:
    worker = awake(subject)
    train(worker)
    worker.step(VERSION)
    train(worker)
    worker.clear()

    assert 0 == worker.reduce(0, [0], {0: []})
    assert 0.0 == worker.step(VERSION + 1).gradient_norm


def a_rest_keeps_the_sum(subject: Subject) -> None:
    """SPEC 2.5."""
    plain, rested = awake(subject), awake(subject)
    for worker in (plain, rested):
        train(worker)
    rested.offload()
    rested.reload()

    assert 0 == rested.reduce(0, [0], {0: [1]})
    assert plain.step(VERSION).gradient_norm == rested.step(VERSION).gradient_norm


def scores_that_are_given_stand_for_its_own(subject: Subject) -> None:
    worker = awake(subject)
    scores = worker.score(ONE)
    report = worker.train(ONE, lease=1, num_executions=NUM_EXECUTIONS, scores=scores)

    assert scores == report.scores
    assert [share.num_targets for share in ONE.shares] == [one.count for one in scores]


def what_cannot_be_computed_is_refused(subject: Subject) -> None:
    worker = awake(subject)
    for act in (
        lambda: train(worker, Claim(shares=ONE.shares, packs=ONE.packs[:1])),
        lambda: worker.score(Claim(shares=ONE.shares, packs=ONE.packs[:1])),
    ):
        with pytest.raises(CellError) as error:
            act()
        assert not error.value.retryable

    assert 0 == worker.reduce(0, [0], {0: []})


def a_satellite_sums_and_does_not_step(subject: Subject) -> None:
    """SPEC 3.1."""
    satellite = awake(subject, 1)
    train(satellite)
    with pytest.raises(CellError, match="no optimizer") as error:
        satellite.step(VERSION)

    assert (VERSION, False) == (satellite.version, error.value.retryable)


def a_satellite_that_pulls_has_the_core_s_weights_and_no_sum(subject: Subject) -> None:
    core, satellite = awake(subject), awake(subject, 1)
    before = core.expose()
    for worker in (core, satellite):
        train(worker)
    core.step(VERSION)
    given = core.expose()
    satellite.pull(given)

    assert (VERSION, 4, 4) == (before.version, given.version, satellite.version)
    assert digest(subject, core, "core") == digest(subject, satellite, "satellite")
    assert 0 == satellite.reduce(0, [1], {1: []})


def cells_make_one_update_and_share_it(subject: Subject) -> None:
    """SPEC 3.3: the first member's sum is that of all, and then all have its weights."""
    alone, core, satellite = awake(subject, 2), awake(subject), awake(subject, 1)
    for worker in (alone, core):
        train(worker)
    for worker in (alone, satellite):
        train(worker, OTHER, lease=2)
    members, leases = [0, 1], {0: [1], 1: [2]}
    together(*(lambda one=one: one.form_groups(1, members) for one in (core, satellite)))
    sent = together(*(lambda one=one: one.reduce(1, members, leases) for one in (core, satellite)))
    report = core.step(VERSION)
    together(*(lambda one=one: one.broadcast_weights(1, members, 4) for one in (core, satellite)))

    assert 0 == sent[0] < sent[1]
    assert pytest.approx(alone.step(VERSION).gradient_norm, rel=1e-5) == report.gradient_norm
    assert (4, 4) == (core.version, satellite.version)
    assert digest(subject, core, "core") == digest(subject, satellite, "satellite")


def a_checkpoint_is_of_the_version_that_was_meant_and_is_written_once(subject: Subject) -> None:
    """SPEC 10; written at rest as well."""
    worker = subject.make()
    saved = worker.save(subject.folder / "v", VERSION)
    whole = worker.checkpoint(subject.folder / "v", VERSION)
    with pytest.raises(CheckpointError, match="has version 3"):
        worker.save(subject.folder / "w", VERSION + 1)

    assert (False, True) == (saved.has_optimizer, whole.has_optimizer)
    assert saved.digest == whole.digest == digest(subject, worker, "v")
    assert not (subject.folder / "w").exists()


EVERY_WORKER = [
    it_begins_at_rest_with_the_version_it_was_given,
    a_lease_is_in_the_sum_once,
    a_sum_of_other_leases_is_sent_nowhere,
    a_step_is_from_the_version_that_was_meant,
    a_step_and_a_clear_leave_no_lease,
    a_rest_keeps_the_sum,
    scores_that_are_given_stand_for_its_own,
    what_cannot_be_computed_is_refused,
    a_satellite_sums_and_does_not_step,
    a_satellite_that_pulls_has_the_core_s_weights_and_no_sum,
    cells_make_one_update_and_share_it,
    a_checkpoint_is_of_the_version_that_was_meant_and_is_written_once,
]
