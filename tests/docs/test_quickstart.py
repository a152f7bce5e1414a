"""The first page's first command, shortened: the quick start's own file, for two bursts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import read
from gyre.scheduler.messages import CellTraining, Published
from gyre.types.run_events import RewardGiven, StepMade

ROOT = Path(__file__).parents[2]
FILE = "examples/quickstart.toml"
RESULTS = ROOT / "benchmarks" / "results"
GAIN = 0.3


def test_make_demo_is_the_quick_start():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]

    assert f"gyre train {FILE}\n" in recipe


def test_its_tasks_and_the_levels_of_its_gauges_agree():
    """The judge's right answers stand in the task, and what the agent sees in its files."""
    folder = ROOT / "examples" / "quickstart"
    levels = (folder / "workspace" / "levels.txt").read_text()
    rows = {name: found for name, *found in map(str.split, levels.splitlines())}
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]

    assert 40 < len(tasks) == len(rows)
    for task in tasks:
        assert task["evaluation"]["argv"][-len(rows[task["id"]]) :] == rows[task["id"]]


@pytest.mark.slow
def test_the_quick_start_shortened_takes_its_steps_and_says_what_happened(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, "-m", "gyre", "train", FILE]
    command += [f"run.folder={tmp_path / 'run'}", "schedule.steps=4", "schedule.groups_per_batch=2"]
    command += [f"deadlines.agent_s={PATIENCE_S}", f"deadlines.overall_s={2 * PATIENCE_S}"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    for part in ("step 4/4", "Reward by step", "Staleness", "simulated", "colocate", "finished"):
        assert part in done.stdout, done.stdout
    reading = read(tmp_path / "run" / "journal", kinds=JOURNAL_EVENTS)
    assert [2, 4] == [one.version for _, one in reading.facts((Published,))]
    assert 4 == len(reading.facts((StepMade,)))
    assert 32 == len(reading.facts((RewardGiven,)))
    assert reading.facts((CellTraining,))


def quickstart_results():
    found = [json.loads(path.read_text()) for path in RESULTS.glob("*-live-quickstart*.json")]
    return max(found, key=lambda one: one["at"])


def test_it_learns_on_three_seeds_within_three_minutes():
    """As the committed result of benchmarks/live/quickstart.py says."""
    runs = quickstart_results()["samples"]["as earned"]

    assert 3 <= len({one["seed"] for one in runs})
    for one in runs:
        assert one["rewards"][-1] >= one["rewards"][0] + GAIN, one
        assert one["seconds"] < 180, one


def test_it_learns_nothing_from_rewards_dealt_out_by_chance():
    runs = quickstart_results()["samples"]["shuffled"]

    assert 3 <= len({one["seed"] for one in runs})
    for one in runs:
        first, last = (sum(part) / 3 for part in (one["rewards"][:3], one["rewards"][-3:]))
        assert last < first + GAIN, one


def test_it_was_measured_as_it_stands():
    assert (ROOT / FILE).read_text() == quickstart_results()["settings"]["file"]
