"""A run in its folder: how far it has come, who works on it, and what may change in it."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.flows.live.running import SCHEDULE, tasks_of, write_run
from tests.waiting import PATIENCE_S

from gyre.cli.main import main
from gyre.cluster.process import lock_holder
from gyre.config.toml import as_toml
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.run_dir import (
    SETTINGS,
    changes,
    fixed_settings,
    read_run,
    recorded,
    refuse_changes,
    require_no_writer,
    standing,
)
from gyre.journal.journal import Header, Journal, path_of, read, write
from gyre.scheduler.messages import RunStarted
from gyre.scheduler.replay import plain_shape
from gyre.testing.emulated_cell import tables
from gyre.types.errors import ConfigError


@pytest.fixture
def begun(tmp_path):
    """The file of a run that was begun, and has come no further."""
    found = tables(tmp_path / "run", tasks_of(tmp_path, seed=1, mean_s=1), {"schedule": SCHEDULE})
    path = write_run(tmp_path / "asked.toml", found)
    run = read_run(path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.toml").write_text("\n".join(as_toml(run.config)))
    notes = {SETTINGS: fixed_settings(run.config)}
    header = Header(run="one", seed=0, started_at=0.0, shape=plain_shape(run.shape), notes=notes)
    write(path_of(folder), header, [(0.0, RunStarted())], kinds=JOURNAL_EVENTS)
    return path


def test_where_nothing_was_begun_nothing_stands(tmp_path):
    assert standing(tmp_path) is None
    path_of(tmp_path).write_bytes(b"")
    assert standing(tmp_path) is None


def test_a_run_says_how_far_it_is(begun):
    found = standing(begun.parent / "run")

    assert "one: 0 steps taken, version 0 published; it can go on" == str(found)


def test_what_a_run_was_told_is_read_back_the_same(begun):
    asked, found = read_run(begun), recorded(begun.parent / "run")

    assert [] == list(changes(asked.config, found.config))
    assert asked.shape == found.shape
    assert fixed_settings(asked.config) == fixed_settings(found.config)


def test_what_no_decision_depends_on_may_change(begun):
    overrides = ["trackers.wandb=true", "schedule.lease_s=5", "checkpoint.keep=7"]
    found = recorded(begun.parent / "run", overrides).config

    assert (True, 5.0, 7) == (
        found.trackers.wandb,
        found.schedule.lease_s,
        found.checkpoint.keep,
    )


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.seed=4", "run.seed: was 0, asked for now 4"),
        ("model.name=smollm2", "model.name: was 'tiny', asked for now 'smollm2'"),
        ("schedule.steps=8", "schedule.steps: was 4, asked for now 8"),
        ("optimizer.lr=0.5", "optimizer.lr: was 1e-06, asked for now 0.5"),
        ("tasks.path=elsewhere", "tasks.path: was "),
        ("deadlines.agent_s=1", "deadlines.agent_s: was 600.0, asked for now 1"),
    ],
)
def test_what_matters_is_refused_with_both_values(begun, override, says):
    with pytest.raises(ConfigError, match="cannot change") as refused:
        recorded(begun.parent / "run", [override])

    assert says in str(refused.value)


def test_a_file_that_was_changed_by_hand_is_held_against_the_journal(begun):
    file = begun.parent / "run" / "run.toml"
    file.write_text(file.read_text().replace("steps = 4", "steps = 8"))

    with pytest.raises(ConfigError, match=r"schedule\.steps: was 4, run\.toml says 8"):
        refuse_changes(begun.parent / "run", read_run(file))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("lr = 1e-06", "lr = 0.5", "optimizer.lr: was 1e-06, run.toml says 0.5"),
        ("seed = 0", "seed = 4", "run.seed: was 0, run.toml says 4"),
    ],
)
def test_a_value_that_was_changed_in_the_runs_own_file_is_named(begun, before, after, says):
    """Nothing else would tell: what the file says is all that a resume is told."""
    file = begun.parent / "run" / "run.toml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))

    with pytest.raises(ConfigError) as refused:
        recorded(begun.parent / "run")
    assert says in str(refused.value)


def test_settings_that_mean_the_same_are_no_change(begun):
    config = read_run(begun).config
    one, other = (
        fixed_settings(replace(config, harness=replace(config.harness, env=env)))
        for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    )
    listed = replace(config, harness=replace(config.harness, argv=list(config.harness.argv)))

    assert one == other != fixed_settings(config) == fixed_settings(listed)


def test_a_run_of_an_older_format_is_refused_before_anything_starts(begun, capsys):
    folder = begun.parent / "run"
    path = path_of(folder)
    header = read(path, kinds=()).header
    path.unlink()
    older = replace(header, minor=0, notes={})
    write(path, older, [(0.0, RunStarted())], kinds=JOURNAL_EVENTS)
    before = path.read_bytes()

    assert 2 == main(["resume", str(folder)])
    said = capsys.readouterr()
    assert "found a run of journal format 1.0, expected 1.1 or newer" in said.err
    assert "" == said.out
    assert before == path.read_bytes()


def test_train_on_a_run_that_was_begun_says_so_and_starts_nothing(begun, capsys):
    before = path_of(begun.parent / "run").read_bytes()

    assert 2 == main(["train", str(begun)])
    said = capsys.readouterr().out
    assert "there is a run in" in said
    assert f"gyre resume {begun.parent / 'run'}" in said
    assert before == path_of(begun.parent / "run").read_bytes()


def test_resume_without_a_run_is_refused(tmp_path, capsys):
    assert 2 == main(["resume", str(tmp_path)])
    assert "there is no run to resume" in capsys.readouterr().err


WRITER = """
import sys, time
from pathlib import Path
from gyre.journal.journal import Journal
from gyre.scheduler.replay import EVENTS
journal, _ = Journal.resume(Path(sys.argv[1]), at=0.0, kinds=EVENTS)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def stopped_writer(begun):
    """A controller that sleeps, as on a machine that was suspended."""
    path = path_of(begun.parent / "run")
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert "ready\n" == child.stdout.readline()
    os.kill(child.pid, signal.SIGSTOP)
    yield begun.parent / "run", child
    child.kill()
    child.wait(PATIENCE_S)
    child.stdout.close()


def test_a_controller_that_is_stopped_keeps_its_run_and_is_named(stopped_writer):
    """FAULTS 30: nobody goes on beside one that may wake up."""
    folder, child = stopped_writer

    with pytest.raises(ConfigError, match=f"process {child.pid} works on this run"):
        require_no_writer(folder, take_over=False)
    with pytest.raises(ConfigError, match="another controller writes this journal"):
        Journal.resume(path_of(folder), at=0.0, kinds=JOURNAL_EVENTS)
    assert child.poll() is None


def test_take_over_ends_it_first(stopped_writer):
    folder, child = stopped_writer
    require_no_writer(folder, take_over=True)

    assert -signal.SIGKILL == child.wait(PATIENCE_S)
    assert lock_holder(path_of(folder)) is None
    journal, _ = Journal.resume(path_of(folder), at=0.0, kinds=JOURNAL_EVENTS)
    journal.close()
