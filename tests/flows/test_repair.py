"""Cells of live runs are killed and stopped: nobody notices but the journal."""

import os
import signal
from collections import Counter

import pytest
from tests.flows.live.followed_run import watched
from tests.flows.live.recomputed import digests
from tests.flows.live.running import SCHEDULE, held, pid_of, run_live, tasks_of, write_run
from tests.waiting import patience

from gyre.controller.run_dir import read_run
from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellTraining,
    EngineReturned,
    GroupAssigned,
    StepTaken,
    StopReason,
)
from gyre.scheduler.replay import replay
from gyre.storage import call_log
from gyre.testing.emulated_cell import tables
from gyre.types.call_records import CallFailed
from gyre.types.run_events import (
    ClaimTrained,
    GroupPacked,
    StepMade,
    StepReplayed,
    WeightsPublished,
)

pytestmark = pytest.mark.slow
LEASE_S = patience(5.0)
"""Shorter than by default, and longer than a cell that works is silent."""
EXACT = {
    "schedule": {"steps": 2, "extra_dispatch": 0},
    "cells": {"count": 2, "capacity": 9},
    "trainer": {"deterministic": True},
    "objective": {"clip_low": 1e-6, "clip_high": 1e6},
    "optimizer": {"lr": 1e-4},
}
"""Real updates of a small model, in deterministic mode, none of which is masked away."""


class Faults:
    """Signals to cells, each when a fact is heard that it waits for, in their order."""

    def __init__(self, folder, *planned):
        self._folder = folder
        self._left = list(planned)

    def __call__(self, now, fact):
        if self._left and self._left[0][-1](fact):
            name, number, _ = self._left.pop(0)
            os.kill(pid_of(self._folder, name), number)

    @property
    def are_over(self):
        return not self._left


def exact(folder, heard, **changed):
    """A run that really trains; its agents only take time."""
    tasks = tasks_of(folder, seed=1, mean_s=0.1)
    found = tables(folder / "run", tasks, {"schedule": SCHEDULE}, EXACT, changed)
    del found["cells"]["trainer"]
    return run_live(write_run(folder / "run.toml", found), heard=heard)


def assert_whole(ran):
    """Books, orders and calls are those of a run to which nothing happened."""
    assert StopReason.FINISHED == ran.reason
    assert StopReason.FINISHED is watched(ran.shape, ran.events).stopped
    assert [orders for _, _, orders in ran.decided] == list(replay(ran.shape, ran.events).orders)
    steps = list(range(ran.shape.steps))
    assert steps == [one.step for one in ran.facts(StepTaken)]
    pulled = [one.group for one in ran.facts(GroupAssigned)]
    assert len(steps) * ran.shape.groups_per_batch == len(pulled) == len(set(pulled))
    assert 0 == sum(
        type(one) is CallFailed
        for path in call_log.logs(ran.folder)
        for one in call_log.read(path).records
    )


def test_a_core_killed_at_every_bad_moment_leaves_the_weights_of_an_undisturbed_run(tmp_path):
    """SPEC 10: in the middle of a batch, before its step is durable, and before publication."""
    faults = Faults(
        tmp_path,
        ("cell-0", signal.SIGKILL, lambda one: type(one) is ClaimTrained and one.cell == 0),
        ("cell-0", signal.SIGKILL, lambda one: one == StepTaken(step=0)),
        ("cell-0", signal.SIGKILL, lambda one: one == StepTaken(step=1)),
    )
    small = {"groups_per_batch": 2, "executions_per_group": 2}
    ran = exact(tmp_path, faults, schedule=small)
    expected, norms = digests(ran, read_run(tmp_path / "run.toml", ()).config)
    published = {one.version: one.digest for one in ran.facts(WeightsPublished)}

    assert faults.are_over
    assert_whole(ran)
    assert [0, 0, 0] == [one.cell for one in ran.facts(CellRecovered)]
    assert {one.cell for one in ran.facts(CellDied)} == {0}
    assert [(0, True), (1, True)] == [(one.step, one.is_equal) for one in ran.facts(StepReplayed)]
    assert norms == {one.step: one.gradient_norm for one in ran.facts(StepMade)}
    assert all(norms.values())
    assert {2: expected[2]} == published


class LastClaim:
    """All claims of a step are in sums, that of a satellite among them: they are summed next."""

    def __init__(self, cell):
        self._cell = cell
        self._packed = Counter()
        self._groups = Counter()
        self._trained = Counter()
        self._by_cell = set()

    def __call__(self, fact):
        if isinstance(fact, GroupPacked):
            self._groups[fact.step] += 1
            self._packed[fact.step] += fact.num_claims
        if not isinstance(fact, ClaimTrained):
            return False
        self._trained[fact.step] += 1
        if fact.cell == self._cell:
            self._by_cell.add(fact.step)
        is_last = self._trained[fact.step] == self._packed[fact.step]
        is_full = self._groups[fact.step] == SCHEDULE["groups_per_batch"]
        return is_last and is_full and fact.step in self._by_cell


def test_cells_that_hang_or_lose_their_engine_are_replaced_and_the_update_is_the_same(tmp_path):
    """FAULTS 3, 24: stopped at a reduction, while it serves, and a standalone engine that ends."""
    faults = Faults(
        tmp_path,
        ("cell-1", signal.SIGSTOP, LastClaim(1)),
        ("engine-2", signal.SIGKILL, lambda one: one == CellRecovered(cell=1, version=0)),
        ("cell-0", signal.SIGSTOP, lambda one: isinstance(one, EngineReturned)),
    )
    joined = tmp_path / "joined"

    def heard(now, fact):
        if isinstance(fact, CellTraining) and fact.cell == 1:
            joined.touch()
        faults(now, fact)

    ran = exact(
        tmp_path,
        heard,
        cells={"standalone": [20]},
        schedule={"lease_s": LEASE_S, "group_s": LEASE_S},
        # The second step has claims left for a satellite that is slow to join.
        harness=held(joined, "g00002"),
    )
    expected, norms = digests(ran, read_run(tmp_path / "run.toml", ()).config)

    assert faults.are_over
    assert_whole(ran)
    assert [1, 0] == [one.cell for one in ran.facts(CellRecovered)]
    assert [2] == [one.engine for one in ran.facts(EngineReturned)]
    assert norms == {one.step: one.gradient_norm for one in ran.facts(StepMade)}
    assert expected[2] == ran.facts(WeightsPublished)[-1].digest
