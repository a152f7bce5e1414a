"""Whole runs over three Ray nodes on this machine: undisturbed, struck, and resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flows.live.followed_run import watched
from tests.flows.live.running import SCHEDULE, run_live, tasks_of, write_run
from tests.hardware.clusters.nodes import OTHERS, Nodes

from gyre.cell.spec import CellSpec
from gyre.cli.main import main
from gyre.scheduler.messages import CellDied, CellRecovered, GroupAssigned, StepTaken, StopReason
from gyre.scheduler.replay import replay
from gyre.storage.files import read_plan
from gyre.testing.emulated_cell import tables
from gyre.types.run_events import ClaimTrained, WeightsPublished

# Ray and what it needs warn of what is none of ours.
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).parents[3]
PATIENCE_S = 240.0
SMALL = SCHEDULE | {
    "groups_per_batch": 2,
    "executions_per_group": 3,
    "extra_dispatch": 0.5,
    "steps": 4,
}
"""Eight groups of three executions, in four steps."""


@pytest.fixture(scope="module")
def made():
    found = Nodes()
    yield found
    found.close()


@pytest.fixture
def nodes(made):
    made.revived()
    return made


def written(folder, nodes, *changed, trains=True):
    """Two cells on two nodes, and executions on all three; the cells train `tiny` for real."""
    given = {
        "schedule": SMALL,
        "cells": {"count": 2, "capacity": 5},
        "cluster": {"kind": "ray", "address": nodes.address, "cell_cpus": 2.0},
    }
    tasks = tasks_of(folder, seed=1, mean_s=0.5, members=3)
    found = tables(folder / "run", tasks, given, *changed)
    if trains:
        del found["cells"]["trainer"]
    return write_run(folder / "run.toml", found)


def hosts(folder):
    """Where each cell listens."""
    plans = sorted((folder / "run" / "plans").glob("cell-*.json"))
    return [read_plan(one, CellSpec).host for one in plans]


def assert_whole(ran, events=None):
    """Books and orders are those of a run to which nothing happened."""
    assert StopReason.FINISHED == ran.reason
    assert StopReason.FINISHED is watched(ran.shape, ran.events).stopped
    assert list(range(ran.shape.steps)) == [one.step for one in ran.facts(StepTaken)]
    pulled = [one.group for one in ran.facts(GroupAssigned)]
    assert ran.shape.steps * ran.shape.groups_per_batch == len(pulled) == len(set(pulled))


def test_a_run_trains_over_three_nodes_and_leaves_nothing_on_them(nodes, tmp_path):
    ran = run_live(written(tmp_path, nodes))

    assert_whole(ran)
    assert [orders for _, _, orders in ran.decided] == list(replay(ran.shape, ran.events).orders)
    assert set(OTHERS) == set(hosts(tmp_path))
    assert f"http://{nodes.head}:" in (tmp_path / "run" / "proxy.url").read_text()
    assert [2, 4] == [one.version for one in ran.facts(WeightsPublished)]
    assert [] == left(tmp_path / "run")


class KillsNode:
    """A node with one of the cells, when a fact is heard that it waits for; once."""

    def __init__(self, nodes, folder, cell, waits):
        self._nodes = nodes
        self._folder = folder
        self._cell = cell
        self._waits = waits
        self.killed = None

    def __call__(self, now, fact):
        if self.killed is None and self._waits(fact):
            self.killed = hosts(self._folder)[self._cell]
            self._nodes.kill(self.killed)


def struck(nodes, folder, cell):
    """A run of which the node with this cell dies in a batch; two cells fit on the other node."""
    path = written(folder, nodes, {"cluster": {"cell_cpus": 1.0}, "cells": {"capacity": 8}})
    kill = KillsNode(nodes, folder, cell, lambda one: isinstance(one, ClaimTrained))
    ran = run_live(path, heard=kill)
    assert kill.killed in OTHERS
    assert_whole(ran)
    assert cell in {one.cell for one in ran.facts(CellDied)}
    assert [] == left(folder / "run")
    return ran, kill.killed


def test_the_core_s_node_that_dies_in_a_batch_costs_the_run_nothing_but_time(nodes, tmp_path):
    """The core is repaired on the node that is left, under the name that it had."""
    ran, killed = struck(nodes, tmp_path, 0)

    assert 0 in {one.cell for one in ran.facts(CellRecovered)}
    assert killed not in hosts(tmp_path)


def test_a_satellite_s_node_that_dies_in_a_batch_keeps_nobody_from_training(nodes, tmp_path):
    """The core goes on alone; whether the satellite is back before the end is as it comes."""
    struck(nodes, tmp_path, 1)


def test_a_cell_larger_than_a_node_has_its_stages_on_two(nodes, tmp_path):
    spans = {"cells": {"count": 1, "capacity": 8, "stages": 2}, "cluster": {"cell_nodes": 2}}
    ran = run_live(written(tmp_path, nodes, spans))
    plan = read_plan(tmp_path / "run" / "plans" / "cell-0.json", CellSpec)
    (door,) = plan.doors

    assert_whole(ran)
    assert list(OTHERS) == [plan.host, door.rpartition(":")[0]], "sorted by node"
    assert [2, 4] == [one.version for one in ran.facts(WeightsPublished)]
    assert [] == left(tmp_path / "run")


def test_a_run_whose_controller_is_killed_goes_on_with_one_command(nodes, tmp_path):
    path = written(tmp_path, nodes)
    command = [
        sys.executable,
        "-m",
        "tests.flows.live.killed_processes",
        str(path),
        "killed",
        "StepTaken:1",
    ]
    done = subprocess.run(
        command, cwd=ROOT, timeout=PATIENCE_S, capture_output=True, text=True, check=False
    )
    assert -signal.SIGKILL == done.returncode, done.stderr
    ran = run_live(path, resumes=True)

    assert_whole(ran)
    assert [] == left(tmp_path / "run")


def test_a_run_that_is_told_to_stop_leaves_nothing_on_any_node(nodes, tmp_path, capsys):
    path = written(tmp_path, nodes, trains=False)
    command = [
        sys.executable,
        "-m",
        "tests.flows.live.killed_processes",
        str(path),
        "killed",
        "StepTaken:1",
    ]
    subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, capture_output=True, check=False)

    assert 0 == main(["stop", str(tmp_path / "run")])
    assert "it can go on" in capsys.readouterr().out
    assert [] == left(tmp_path / "run", patience=100)


def left(folder, patience=20):
    """Processes of this machine, and so of every node, that write into the run's folder."""
    import time

    for _ in range(patience):
        found = []
        for one in Path("/proc").iterdir():
            if one.name.isdecimal() and int(one.name) != os.getpid():
                try:
                    if (one / "fd" / "2").readlink().is_relative_to(folder):
                        found.append((one / "cmdline").read_text().replace("\0", " "))
                except OSError:
                    continue
        if not found:
            return []
        time.sleep(0.1)
    return found
