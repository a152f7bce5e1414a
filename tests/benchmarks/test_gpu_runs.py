"""One run after the other: who is left of a run is waited for, and samples are of one thing."""

import json
import subprocess
import sys

import pytest
from benchmarks.live import left, running
from benchmarks.live.left import Left
from benchmarks.live.running import Kept
from benchmarks.peers import results
from tests.waiting import wait_until

from gyre.types.errors import ConfigError

LINGERS = "import time; print(flush=True); time.sleep({})"
STAYS = """
import os, time
print(flush=True)
while os.path.exists({!r}):
    time.sleep(0.01)
print("by itself", flush=True)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def detached(folder, code):
    """A process that is nobody's child and leads a session, and is known by its log alone."""
    log = folder / "lingers.log"
    with log.open("wb") as said:
        lead = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
        command = [sys.executable, "-c", lead, sys.executable, "-c", code]
        subprocess.run(command, check=True, stdout=said, stderr=said)
    wait_until(log.read_bytes, "it runs")


def test_a_process_that_lingers_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "stays").touch()
    detached(tmp_path, STAYS.format(str(tmp_path / "stays")))
    gone = Left.gone

    def goes(others, folder, **how):
        (tmp_path / "stays").unlink()
        gone(others, folder, **how)

    monkeypatch.setattr(Left, "gone", goes)
    with subprocess.Popen(["true"]) as process:
        process.wait()
        before = len(Left(tmp_path).look())
        running.left_alone(process, tmp_path)

    assert 1 == before
    assert (tmp_path / "lingers.log").read_text().endswith("by itself\n")
    assert set() == Left(tmp_path).look()


def test_who_does_not_end_by_itself_is_killed(tmp_path):
    detached(tmp_path, DEAF + LINGERS.format(600))

    Left(tmp_path).gone(tmp_path / "run", leave_s=0.2)

    assert set() == Left(tmp_path).look()


def test_children_and_sessions_of_who_is_left_are_left_as_well(tmp_path):
    """A shell that names the folder, and what it runs elsewhere, also when it has ended."""
    command = ["sh", "-c", "cd /; sleep 600 & sleep 600", str(tmp_path)]
    others = Left(tmp_path)
    with subprocess.Popen(command, start_new_session=True) as process:
        wait_until(lambda: len(others.look()) == 3, "the shell and what it runs")
        found = others.look()
        process.kill()
        process.wait()
        orphans = others.look()
        others.gone(tmp_path / "run", leave_s=0.2)

    assert found - {process.pid} == orphans
    assert set() == others.look()


def test_folders_with_names_alike_have_nothing_to_do_with_each_other(tmp_path):
    (tmp_path / "elastic-10").mkdir()
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path / "elastic-10") as process:
        found = [Left(tmp_path / name).look() for name in ("elastic-1", "elastic-10")]
        process.kill()

    assert [set(), {process.pid}] == found


def test_a_sample_says_what_it_began_beside():
    with subprocess.Popen(["sleep", "600"]) as process:
        wait_until(lambda: left.around()["processes_before"], "it is seen")
        found = left.around()
        process.kill()

    assert {"load_before", "processes_before"} == set(found)


def test_a_run_ends_with_who_started_it(tmp_path, monkeypatch):
    program = tmp_path / "sleeps"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (tmp_path / "run").mkdir()
    seen = []

    def told(process, folder, within_s):
        seen.extend(Left(tmp_path).look())
        sys.exit(running.STOPPED)

    monkeypatch.setattr(running, "over", told)
    with pytest.raises(SystemExit):
        running.trained(tmp_path, {}, is_over_early=True)

    assert 1 == len(seen)
    assert set() == Left(tmp_path).look()


def test_samples_that_were_kept_are_found_by_a_second_call(tmp_path):
    path = tmp_path / "deep" / "kept.jsonl"
    Kept(path, {"steps": 6}).add({"seconds": 1.0}, "elastic", 0)

    found = Kept(path, {"steps": 6})

    assert {"seconds": 1.0} == found.get("elastic", 0)
    assert None is found.get("elastic", 1)


@pytest.mark.parametrize("changed", ["steps", "sources"])
def test_samples_of_something_else_are_refused(tmp_path, monkeypatch, changed):
    path = tmp_path / "kept.jsonl"
    Kept(path, {"steps": 6}).add({"seconds": 1.0}, "elastic", 0)
    if changed == "sources":
        monkeypatch.setattr(results, "sources_digest", lambda: "others")

    with pytest.raises(ConfigError, match=rf"kept.jsonl.*{changed}.*remove this one"):
        Kept(path, {"steps": 6 if changed == "sources" else 7})


def test_a_file_that_says_not_what_it_is_of_is_refused(tmp_path):
    path = tmp_path / "kept.jsonl"
    path.write_text(json.dumps({"of": ["elastic", 0], "sample": {}}) + "\n")

    with pytest.raises(ConfigError, match="sources"):
        Kept(path)


def test_a_part_that_came_to_no_end_is_measured_again(tmp_path):
    path = tmp_path / "kept.jsonl"
    first = Kept(path).part("decode")
    first.add("host", {"seconds": 1.0})
    first.add("device", {"seconds": 2.0})
    cut = Kept(path).part("decode")
    before = cut.samples()
    cut.add("host", {"seconds": 3.0})
    cut.end()

    assert None is before
    assert [("host", {"seconds": 3.0})] == Kept(path).part("decode").samples()
