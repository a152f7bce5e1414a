"""A live run whose proxy is two processes: a controller and a shard are killed, and it goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flows.live.running import SCHEDULE, pid_of, run_live, tasks_of, write_run
from tests.waiting import PATIENCE_S

from gyre.scheduler.messages import ExecutionTerminated, Published, StepTaken, StopReason
from gyre.storage import call_log
from gyre.storage.files import proxy_address_file
from gyre.testing.emulated_cell import tables
from gyre.types.call_records import CallClosed, LogSealed
from gyre.types.ids import shard_of
from gyre.types.run_events import ProxyRestarted

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SHARDS = 2


class KillAShard:
    """The second one, once, while executions run; who was there before, and who is at the end."""

    def __init__(self, folder):
        self._folder = folder
        self.before = self.after = None

    def __call__(self, now, fact):
        if self.before is None and isinstance(fact, Published):
            self.before = self._pids()
            os.kill(self.before[1], signal.SIGKILL)
        if isinstance(fact, StepTaken):
            self.after = self._pids()

    def _pids(self):
        return pid_of(self._folder, "proxy"), pid_of(self._folder, "proxy-1")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Its second controller, after the first was killed in a batch, and what became of it all."""
    folder = tmp_path_factory.mktemp("sharded")
    tasks = tasks_of(folder, seed=1, mean_s=0.3, members=3)
    schedule = SCHEDULE | {"groups_per_batch": 2, "executions_per_group": 3, "extra_dispatch": 0.5}
    changed = {"schedule": schedule, "proxy": {"shards": SHARDS}, "cells": {"count": 2}}
    path = write_run(folder / "run.toml", tables(folder / "run", tasks, changed))
    command = [
        sys.executable,
        "-m",
        "tests.flows.live.killed_processes",
        str(path),
        "killed",
        "StepTaken:1",
    ]
    done = subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, capture_output=True, check=False)
    assert -signal.SIGKILL == done.returncode, done.stderr
    left = pid_of(folder, "proxy"), pid_of(folder, "proxy-1")
    kill = KillAShard(folder)
    ran = run_live(path, heard=kill, resumes=True)
    return left, kill, ran


def test_it_takes_all_its_steps_once(killed):
    _, _, ran = killed

    assert StopReason.FINISHED == ran.reason
    assert [0, 1, 2, 3] == [one.step for one in ran.facts(StepTaken)]
    assert 1 == len(ran.facts(ProxyRestarted))


def test_the_next_controller_finds_both_and_the_first_outlives_the_death_of_the_second(killed):
    left, kill, _ = killed

    assert left == kill.before
    assert left[0] == kill.after[0]
    assert left[1] != kill.after[1]


def test_every_execution_is_recorded_whole_whichever_shard_it_had(killed):
    _, _, ran = killed
    of_shard = [0] * SHARDS
    for path in call_log.logs(ran.folder):
        records = call_log.read(path).records
        assert isinstance(records[-1], LogSealed)
        committed = sum(isinstance(one, CallClosed) for one in records)
        of_shard[shard_of(path.name.removesuffix(call_log.SUFFIX), SHARDS)] += committed

    assert min(of_shard) > 0
    assert len(ran.facts(ExecutionTerminated)) <= sum(of_shard)


def test_each_has_its_own_port_log_and_journal_of_commits(killed):
    _, _, ran = killed
    folder = ran.folder
    urls = {proxy_address_file(folder, shard).read_text() for shard in range(SHARDS)}

    assert SHARDS == len(urls)
    assert {"commits", "commits-1"} <= {path.name for path in folder.iterdir()}
    assert {"proxy.log", "proxy-1.log"} <= {path.name for path in (folder / "logs").iterdir()}
    assert {"proxy.json", "proxy-1.json"} <= {path.name for path in (folder / "plans").iterdir()}
