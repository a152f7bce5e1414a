"""Controllers of live runs are killed: another goes on, and the run is what it would have been."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flows.live.followed_run import watched
from tests.flows.live.killed_processes import all_of
from tests.flows.live.recomputed import digests
from tests.flows.live.running import SCHEDULE, held, pid_of, run_live, tasks_of, write_run
from tests.waiting import PATIENCE_S, wait_until

from gyre.cli.main import main
from gyre.cluster.process import holds_log
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.run_dir import read_run
from gyre.journal.journal import Resumed, read
from gyre.observability.ledgers import ledgers
from gyre.rollout import facts
from gyre.scheduler.messages import (
    ExecutionTerminated,
    GroupAssigned,
    Published,
    StepTaken,
    StopReason,
)
from gyre.scheduler.replay import replay
from gyre.storage import call_log
from gyre.testing.emulated_cell import tables
from gyre.types.call_records import CallFailed
from gyre.types.outcomes import Ending, Launched
from gyre.types.run_events import ProxyRestarted, RewardGiven, RunEnded, StepMade, WeightsPublished

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SMALL = SCHEDULE | {"groups_per_batch": 2, "executions_per_group": 3, "extra_dispatch": 0.5}
"""Eight groups of three executions, in four steps."""
CELLS = {"count": 2, "capacity": 5}
EXACT = {
    "cells": CELLS,
    "trainer": {"deterministic": True},
    "objective": {"clip_low": 1e-6, "clip_high": 1e6},
    "optimizer": {"lr": 1e-4},
}
"""Real updates of a small model, in deterministic mode, none of which is masked away."""


HELD = "g00004*-00"
"""An execution of the burst after the first, which is dispatched with it."""


def written(folder, *changed, trains=True):
    tasks = tasks_of(folder, seed=1, mean_s=0.5, members=3)
    found = tables(folder / "run", tasks, {"schedule": SMALL}, *changed)
    if trains:
        del found["cells"]["trainer"]
    return write_run(folder / "run.toml", found)


def ends_at(path, moment, *, resumes, how="killed"):
    """A controller that does not survive the moment; what it said of it."""
    command = [sys.executable, "-m", "tests.flows.live.killed_processes", str(path), how, moment]
    done = subprocess.run(
        command + ["resumes"] * resumes,
        cwd=ROOT,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    status = {"failing": 1, "told": 0}.get(how, -signal.SIGKILL)
    assert status == done.returncode, done.stderr
    return done.stderr


def whole(ran):
    """The same run with the orders of all its controllers."""
    orders = replay(ran.shape, ran.events).orders
    decided = [(now, event, one) for (now, event), one in zip(ran.events, orders, strict=True)]
    return replace(ran, decided=decided)


class KillTheProxy:
    """Once, while executions run."""

    def __init__(self, folder):
        self._folder = folder
        self.is_done = False

    def __call__(self, now, fact):
        if not self.is_done and isinstance(fact, Published):
            self.is_done = True
            os.kill(pid_of(self._folder, "proxy"), signal.SIGKILL)


MOMENTS = ("ClaimTrained:2", "StepTaken:1", "Publish:1")
"""In a batch, beside the rollout; after a step; while its weights are published."""


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run of four controllers, of which three are killed, and then the proxy too."""
    folder = tmp_path_factory.mktemp("resumed")
    opened = folder / "opened"
    path = written(folder, EXACT, {"harness": held(opened, HELD)})
    for number, moment in enumerate(MOMENTS):
        ends_at(path, moment, resumes=number > 0)
    opened.touch()
    kill = KillTheProxy(folder)
    ran = run_live(path, heard=kill, resumes=True)
    assert kill.is_done
    return whole(ran)


def test_it_takes_all_its_steps_once(resumed):
    assert StopReason.FINISHED == resumed.reason
    assert [0, 1, 2, 3] == [one.step for one in resumed.facts(StepTaken)]
    assert len(MOMENTS) == len(resumed.facts(Resumed))


def test_every_controller_was_killed_with_executions_under_way(resumed):
    """Or the test would show nothing; one execution waits for the last of them."""
    running = 0
    found = []
    for _, event, orders in resumed.decided:
        running += sum(type(one).__name__ == "LaunchExecution" for one in orders)
        running -= isinstance(event, ExecutionTerminated)
        found.append(running)
    times = [now for now, _, _ in resumed.decided]
    cuts = [now for now, _ in resumed.timed(Resumed)]

    assert [True] * len(MOMENTS) == [
        found[max(at for at, now in enumerate(times) if now <= cut)] > 0 for cut in cuts
    ]


def test_its_promises_hold_across_all_of_them(resumed):
    """FAULTS 29: the books of tests/scheduler watch every event of all controllers as of one."""
    assert StopReason.FINISHED is watched(resumed.shape, resumed.events).stopped


def test_each_execution_ran_once_and_both_ledgers_balance(resumed):
    launched = Counter(
        re.sub(r"\.\d+-", "-", folder.name)
        for folder in (resumed.folder / "attempts").iterdir()
        for entry in facts.read(folder)
        if isinstance(entry.fact, Launched)
    )
    rewards = Counter((one.group, one.member) for one in resumed.facts(RewardGiven))
    found = ledgers(resumed.reading)

    assert {1} == set(launched.values())
    assert ({1}, 24) == (set(rewards.values()), len(rewards))
    assert () == tuple(found.faults)
    assert (8, 8, 0) == (found.groups.admitted, found.groups.trained, found.groups.outstanding)
    assert 24 == found.executions.valid


def test_each_group_is_in_one_step_and_the_weights_are_those_of_an_undisturbed_core(resumed):
    """No group is trained twice within one lineage, and none is dropped (SPEC 10)."""
    config = read_run(resumed.folder / "run.toml").config
    weights, _ = digests(resumed, config)
    published = {one.version: one.digest for one in resumed.facts(WeightsPublished)}

    assert {1} == set(Counter(one.group for one in resumed.facts(GroupAssigned)).values())
    assert {2: weights[2], 4: weights[4]} == published
    assert {0, 1, 2, 3} == {one.step for one in resumed.facts(StepMade)}


def test_only_the_death_of_the_proxy_itself_cuts_calls_off(resumed):
    """Those in flight then; a controller's death cuts off none (FAULTS 19)."""
    failed = {
        one.reason
        for path in call_log.logs(resumed.folder)
        for one in call_log.read(path).records
        if type(one) is CallFailed
    }

    assert failed <= {"the proxy ended during the call"}
    assert 1 == len(resumed.facts(ProxyRestarted))
    assert {Ending.COMPLETED} == {one.ending for one in resumed.facts(ExecutionTerminated)}


def test_nothing_is_left_of_it(resumed):
    for path in (resumed.folder / "pids").iterdir():
        log = resumed.folder / "logs" / f"{path.name}.log"
        assert not holds_log(int(path.read_text()), log), path.name


def test_a_run_goes_on_whatever_became_of_it(tmp_path, capsys):
    """Ended by an error, and stopped; every process killed at once (FAULTS 42); told to stop."""
    folder = tmp_path / "run"
    schedule = {"steps": 2, "steps_per_burst": 1, "extra_dispatch": 1.0}
    # The first step does without the last of four groups, so that it is under way at every end.
    opened = tmp_path / "opened"
    changed = {"cells": CELLS, "schedule": schedule, "harness": held(opened, "g00003")}
    path = written(tmp_path, changed, trains=False)
    said = ends_at(path, "ExecutionTerminated:4", how="failing", resumes=False).splitlines()[-1]
    assert f"gyre resume {folder} goes on with them, gyre stop {folder} ends them" in said
    assert holds_log(pid_of(tmp_path, "proxy"), folder / "logs" / "proxy.log")
    assert 0 == main(["stop", str(folder)])
    left = re.search(r"it can go on; (\d+) that were left", capsys.readouterr().out)
    assert 1 < int(left[1]), "an execution was under way"
    wait_until(lambda: not list(all_of(folder)), "the end of all its processes")

    killed = ends_at(path, "CellRecovered:2", how="killed with all", resumes=True)
    assert 5 < int(killed), "proxy, two cells, two nurseries, and an execution that was under way"

    ends_at(path, "StepTaken:1", how="told", resumes=True)
    wait_until(lambda: not list(all_of(folder)), "the end of all its processes")

    opened.touch()
    assert 0 == main(["resume", str(folder)])
    reading = read(folder / "journal", kinds=JOURNAL_EVENTS)
    found = ledgers(reading)
    assert ["told", "finished"] == [
        one.event.reason for one in reading.entries if isinstance(one.event, RunEnded)
    ]
    assert () == tuple(found.faults)
    assert (4, 4) == (found.groups.admitted, found.groups.trained + found.groups.void)
    # Once it is over, the same command says so and does nothing.
    before = (folder / "journal").read_bytes()
    capsys.readouterr()
    assert 0 == main(["resume", str(folder)])
    assert "2 steps taken, version 2 published; it is over (finished)" in capsys.readouterr().out
    assert before == (folder / "journal").read_bytes()
