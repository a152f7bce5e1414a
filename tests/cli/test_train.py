"""gyre train beside a run that is over, and what its trackers are told."""

import sys
from types import SimpleNamespace

import pytest
from tests.simulator.support.scenes import scenario

from gyre.cli.train import open_run_trackers
from gyre.config.toml import as_toml
from gyre.controller.run_dir import read_run
from gyre.journal.journal import path_of, write
from gyre.scheduler.replay import EVENTS
from gyre.simulator.from_journal import header_of
from gyre.simulator.request import journaled
from gyre.storage.files import RUN_FILE
from gyre.types.run_events import StepMade

RUN = """
run.folder = "{folder}"
model.name = "tiny"
schedule.groups_per_batch = 1
schedule.executions_per_group = 2
schedule.extra_dispatch = 0
schedule.steps = 1
schedule.steps_per_burst = 1
cells = {{ count = 1, capacity = 2 }}
tasks = {{ kind = "folder", path = "tasks" }}
harness = {{ argv = ["agent"], env = {{ NAME = "hidden" }} }}
trackers = {{ tensorboard = false, wandb = true }}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "asked.toml"
    path.write_text(RUN.format(folder=tmp_path / "run"))
    return path


@pytest.fixture
def finished(file):
    """The file of a run that has taken all its steps."""
    folder = file.parent / "run"
    folder.mkdir()
    (folder / RUN_FILE).write_text("\n".join(as_toml(read_run(file).config)))
    scene = scenario(steps_per_burst=1)
    _, events = journaled(scene, lambda said: None)
    write(path_of(folder), header_of(scene, started_at=0.0), events, kinds=EVENTS)
    return file


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_another_value_is_refused_beside_a_run_that_is_over(finished, gyre, options):
    done = gyre("train", finished, "run.seed=7", *options)

    assert 2 == done.returncode
    assert "it is over (finished)" in done.stdout
    assert "cannot change\n  run.seed: was 0, asked for now 7\n" in done.stderr


def test_trackers_are_told_the_settings_and_where_a_resumed_run_goes_on(file, monkeypatch):
    opened = []

    def remember(run):
        opened.append(run)
        return SimpleNamespace(log=lambda values, step: None, close=lambda: None)

    fake = SimpleNamespace(opened=remember)
    monkeypatch.setitem(sys.modules, "gyre.observability.trackers.wandb", fake)
    made = StepMade(
        step=4, loss=0.0, reward=0.0, gradient_norm=0.0, is_clipped=False, claims={}, reduce_s=0.0,
        step_s=0.0, reduced_bytes=0,
    )  # fmt: skip
    open_run_trackers(read_run(file), before=None).close()
    open_run_trackers(read_run(file), before=[(1.0, made)]).close()

    first, again = opened
    assert (None, 6) == (first.resumed_at, again.resumed_at)
    assert ("tiny", 1) == (first.settings["model.name"], first.settings["schedule.steps"])
    assert "hidden" not in str(first.settings)
    assert first.settings == again.settings
