"""What is measured behind the last publication of a run, which the scheduler stops at."""

from pathlib import Path

import pytest

from gyre.cli.train import print_summary
from gyre.config.loader import loaded
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.run_dir import checked
from gyre.evals.results import summed_up
from gyre.evals.runner import due
from gyre.journal.journal import Header, path_of, write
from gyre.scheduler.messages import RunStarted, StopReason
from gyre.scheduler.replay import plain_shape

HELD_OUT = {"slots": 3, "tasks": {"kind": "jsonl", "path": "held.jsonl"}}
TABLES = {
    "model": {"name": "tiny"},
    "schedule": {
        "groups_per_batch": 2,
        "executions_per_group": 2,
        "steps": 6,
        "steps_per_burst": 2,
    },
    "cells": {"count": 1, "capacity": 4},
    "tasks": {"kind": "jsonl", "path": "tasks.jsonl"},
    "harness": {"kind": "command", "argv": ["agent"]},
    "evaluation": HELD_OUT,
}


def config(**changed):
    return loaded("test", TABLES | changed, ()).config


def test_the_weights_that_it_ends_with_are_measured_once_on_held_out_tasks():
    """SPEC 6.6."""
    plan = due(config(), Path("/run"))

    assert ("/run/checkpoints/v000006", 6) == (plan.weights.model, plan.weights.version)
    assert ("held.jsonl", 1, 3) == (plan.config.tasks.path, plan.members, plan.concurrency)
    assert Path("/run/evaluations/v000006-last") == plan.folder
    assert str(plan.folder) == plan.config.run.folder


@pytest.mark.parametrize(("every", "is_due"), [(1, True), (2, False), (3, True), (4, False)])
def test_a_round_comes_as_often_there_as_anywhere(every, is_due):
    """Three publications, of which the last is the third."""
    plan = due(config(evaluation=HELD_OUT | {"every": every}), Path("/run"))

    assert is_due == (plan is not None)


def test_a_run_that_measures_nothing_or_never_ends_has_none():
    endless = {name: value for name, value in TABLES["schedule"].items() if name != "steps"}

    assert due(config(evaluation={}), Path("/run")) is None
    assert due(config(schedule=endless), Path("/run")) is None


@pytest.fixture
def finished(tmp_path):
    """A run that took its steps, and whose held-out tasks are not where they were."""
    changed = {"run": {"folder": str(tmp_path)}, "sandbox": {"kind": "process"}}
    run = checked(loaded("test", TABLES | changed, ()))
    header = Header(run="one", seed=0, started_at=0.0, shape=plain_shape(run.shape))
    write(path_of(tmp_path), header, [(0.0, RunStarted())], kinds=JOURNAL_EVENTS)
    return run


def test_a_run_whose_last_weights_could_not_be_measured_has_finished_all_the_same(
    finished, tmp_path, capsys
):
    assert 0 == print_summary(finished, StopReason.FINISHED)
    said = capsys.readouterr().out

    assert "its last weights were not measured: " in said
    assert "held.jsonl" in said
    assert f"gyre resume {tmp_path} goes on with that" in said


@pytest.mark.parametrize(("reason", "status"), [(StopReason.TOO_MANY_VOID, 1), (None, 130)])
def test_a_run_that_has_not_finished_is_not_measured(finished, reason, status, capsys):
    assert status == print_summary(finished, reason)
    assert "measur" not in capsys.readouterr().out


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_measured_whole_is_not_measured_again(is_whole, tmp_path):
    plan = due(config(), tmp_path)
    plan.folder.mkdir(parents=True)
    summed_up(plan, [], tasks="held out", is_whole=is_whole)

    assert is_whole == (due(config(), tmp_path) is None)
