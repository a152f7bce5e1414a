"""Whole runs whose cells share no folder for weights: over sockets, and over Mooncake."""

import pytest
from tests.flows.live.recomputed import digests
from tests.flows.live.running import SCHEDULE, run_live, tasks_of, write_run

from gyre.controller.run_dir import read_run
from gyre.scheduler.messages import CellDied, StepTaken, StopReason
from gyre.testing.emulated_cell import tables
from gyre.types.run_events import TransitionTimed, WeightsPublished

pytestmark = pytest.mark.slow
SMALL = {
    "groups_per_batch": 2,
    "executions_per_group": 2,
    "steps": 2,
    "extra_dispatch": 0,
    "placement": "colocate",
}
"""All cells enter training together, so that each satellite takes weights."""
EXACT = {
    "cells": {"count": 2, "capacity": 9},
    "trainer": {"deterministic": True},
    "objective": {"clip_low": 1e-6, "clip_high": 1e6},
    "optimizer": {"lr": 1e-4},
}
"""Real updates of a small model, in deterministic mode, none of which is masked away."""


def ran_over(kind, folder):
    tasks = tasks_of(folder, seed=1, mean_s=0.1)
    schedule = {"schedule": SCHEDULE | SMALL, "transport": {"kind": kind}}
    found = tables(folder / "run", tasks, schedule, EXACT)
    del found["cells"]["trainer"]
    path = write_run(folder / "run.toml", found)
    return run_live(path), read_run(path, ()).config


@pytest.mark.parametrize("kind", ["tcp", pytest.param("mooncake", marks=pytest.mark.transports)])
def test_weights_are_bit_for_bit_those_that_one_trainer_gets_from_the_journal(
    kind, tmp_path, monkeypatch
):
    """So that it makes no difference how they went from cell to cell."""
    # As a cell of such a run has it, because the journal is followed in this process.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    ran, config = ran_over(kind, tmp_path)
    expected, _ = digests(ran, config)
    published = {one.version: one.digest for one in ran.facts(WeightsPublished)}
    pulls = [one.phases["pull"] for one in ran.facts(TransitionTimed) if "pull" in one.phases]

    assert kind == config.transport.kind
    assert StopReason.FINISHED == ran.reason
    assert [0, 1] == [one.step for one in ran.facts(StepTaken)]
    assert [] == ran.facts(CellDied)
    assert {2: expected[2]} == published
    assert pulls
