"""A controller that was stopped is not followed by a second one beside it."""

import os
import re
import signal
import subprocess
import sys

import pytest
from tests.chaos.held_calls import held_tables, variables, write_blows
from tests.chaos.victims import supervisors
from tests.flows.live.running import SCHEDULE, tasks_of, write_run
from tests.waiting import PATIENCE_S, wait_until

from gyre.journal.journal import Resumed, read
from gyre.observability.ledgers import ledgers
from gyre.scheduler.messages import ExecutionTerminated
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.testing.emulated_cell import tables

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def gyre(*arguments):
    command = [sys.executable, "-m", "gyre", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=variables()
    )


def test_a_stopped_controller_is_named_and_taken_over_only_when_asked(tmp_path):
    """FAULTS 30: it holds the run until somebody says that it hangs, and never wakes up again."""
    place = tmp_path / "run"
    tasks = tasks_of(tmp_path, seed=3, mean_s=0.6)
    cells = {"cells": {"count": 2, "capacity": 6}}
    schedule = {"schedule": {**SCHEDULE, "steps": 2}}
    # The first two groups come to their end, and those behind them wait.
    held = held_tables(tmp_path / "blows", most=2)
    write_blows(tmp_path / "blows", 1)
    file = write_run(tmp_path / "run.toml", tables(place, tasks, schedule, cells, held))
    first = subprocess.Popen(
        [sys.executable, "-m", "gyre", "train", str(file)],
        stdout=subprocess.DEVNULL,
        env=variables(),
    )
    try:
        wait_until(lambda: has_terminated(place) and has_held(place), "a held execution")
        os.kill(first.pid, signal.SIGSTOP)
        write_blows(tmp_path / "blows", 2)
        refused = gyre("resume", str(place))
        taken = gyre("resume", str(place), "--take-over")
        status = first.wait(PATIENCE_S)
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
    reading = read(place / "journal", kinds=JOURNAL_EVENTS)
    found = ledgers(reading)

    assert 2 == refused.returncode
    assert re.search(rf"\b{first.pid}\b", refused.stderr), refused.stderr
    assert 0 == taken.returncode, taken.stderr
    assert -signal.SIGKILL == status
    assert 1 == sum(isinstance(one.event, Resumed) for one in reading.entries)
    assert found.balance
    assert (6, 24) == (found.groups.trained, found.executions.valid)


def has_held(place):
    """Whether something is under way that does not end by itself."""
    return any(one.name >= "g00002" for one in supervisors(place))


def has_terminated(place):
    path = place / "journal"
    if not path.exists():
        return False
    return any(
        isinstance(one.event, ExecutionTerminated)
        for one in read(path, kinds=JOURNAL_EVENTS).entries
    )
