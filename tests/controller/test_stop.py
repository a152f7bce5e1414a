"""gyre stop: a run without a controller leaves no process, and one with a controller is told."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from tests.controller.support.supervised import order, supervised
from tests.waiting import PATIENCE_S

from gyre.cli.main import main
from gyre.cluster.process import holds_log
from gyre.controller import run_dir, stop
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.executions import supervisors
from gyre.controller.executions.supervisors import AdoptedSupervisor
from gyre.journal.journal import Header, path_of, write
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import RunStarted
from gyre.scheduler.replay import plain_shape
from gyre.storage import files
from gyre.storage.files import RUN_FILE
from gyre.types.outcomes import Ending

WRITER = """
import fcntl, signal, sys
{prelude}
journal = open(sys.argv[1], "rb")
fcntl.flock(journal, fcntl.LOCK_EX)
print("here", flush=True)
signal.pause()
"""
"""Holds a journal as whoever works on its run does."""


@pytest.fixture
def begun(tmp_path):
    """A run that was begun."""
    shape = SchedulerConfig(
        groups_per_batch=2, executions_per_group=2, num_cells=2, cell_capacity=4
    )
    header = Header(run="one", seed=0, started_at=0.0, shape=plain_shape(shape))
    write(path_of(tmp_path), header, [(0.0, RunStarted())], kinds=JOURNAL_EVENTS)
    return tmp_path


@pytest.fixture
def patient(monkeypatch):
    """An execution has all the time that it needs to end by itself."""
    monkeypatch.setattr(stop, "END_S", PATIENCE_S)


@contextmanager
def working(folder, prelude=""):
    command = [sys.executable, "-c", WRITER.format(prelude=prelude), str(path_of(folder))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as found:
        assert b"here\n" == found.stdout.readline()
        try:
            yield found
        finally:
            found.kill()


@pytest.mark.usefixtures("patient")
def test_executions_and_processes_that_were_left_have_ended(begun, capsys):
    """What was interrupted says so, so that another controller begins it anew."""
    log = begun / "logs" / "proxy.log"
    log.parent.mkdir()
    (begun / "pids").mkdir()
    with log.open("ab") as errors:
        proxy = subprocess.Popen(["sleep", "600"], stderr=errors, start_new_session=True)
    (begun / "pids" / "proxy").write_text(str(proxy.pid))
    folder = begun / "attempts" / "g00000-00"
    with supervised(folder, order("echo line > work; sleep 600")) as running:
        running.wait_for_work()

        assert 0 == main(["stop", str(begun)])
        ended = running.facts[-1]
        assert 0 == running.process.wait(PATIENCE_S)

    assert Ending.CANCELLED is ended.ending
    assert -signal.SIGKILL == proxy.wait(PATIENCE_S)
    assert not files.is_taken(folder)
    assert not holds_log(proxy.pid, log)
    assert "it can go on; 2 that were left have ended" in capsys.readouterr().out
    # Nobody minds to be asked twice.
    assert 0 == main(["stop", str(begun)])
    assert "nothing was left of it" in capsys.readouterr().out


def test_whoever_works_on_it_is_told_to_stop_first(begun):
    with working(begun) as one:
        assert 0 == main(["stop", str(begun)])
        assert -signal.SIGTERM == one.wait(PATIENCE_S)


def test_who_is_waited_for_is_said_and_one_that_was_suspended_goes_on_to_stop(begun, capsys):
    with working(begun) as one:
        one.send_signal(signal.SIGSTOP)
        # It stands still once this returns.
        os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WNOWAIT)

        assert 0 == main(["stop", str(begun)])
        assert -signal.SIGTERM == one.wait(PATIENCE_S)

    said = capsys.readouterr().out
    assert (
        f"gyre stop: process {one.pid} is told to stop; it has 120 s to end its executions" in said
    )


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("text", ["[run\n", "[run]\nname = 3\n", ""])
def test_a_broken_run_file_keeps_nothing_from_being_ended(begun, capsys, text):
    (begun / RUN_FILE).write_text(text)
    folder = begun / "attempts" / "g00000-00"
    with supervised(folder, order("echo line > work; sleep 600")) as running:
        running.wait_for_work()

        assert 0 == main(["stop", str(begun)])
        assert 0 == running.process.wait(PATIENCE_S)

    said = capsys.readouterr().out
    assert f"only what runs on this machine is ended, because of {begun / RUN_FILE}" in said
    assert "it can go on; 1 that were left have ended" in said


def test_a_damaged_journal_keeps_nobody_from_being_told_to_stop(begun, capsys):
    with path_of(begun).open("r+b") as journal:
        journal.write(b"something else")
    with working(begun) as one:
        assert 0 == main(["stop", str(begun)])
        assert -signal.SIGTERM == one.wait(PATIENCE_S)

    assert "not a run journal" in capsys.readouterr().out


def test_one_that_hangs_is_named_and_nothing_is_ended(begun, capsys, monkeypatch):
    monkeypatch.setattr(run_dir, "STOP_S", 0.1)
    with working(begun, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as one:
        assert 2 == main(["stop", str(begun)])
        assert one.poll() is None

    said = capsys.readouterr().err
    assert f"process {one.pid} was told to stop, and works on; gyre resume" in said


def test_one_that_works_on_another_machine_is_said_and_nothing_is_ended(begun, capsys, monkeypatch):
    monkeypatch.setattr(run_dir, "lock_holder", lambda path: None)
    folder = begun / "attempts" / "g00000-00"
    with working(begun), supervised(folder, order("echo line > work; sleep 600")) as running:
        running.wait_for_work()

        assert 2 == main(["stop", str(begun)])
        assert files.is_taken(folder)

    assert "a process of another machine works on this run; gyre stop" in capsys.readouterr().err


def test_an_execution_that_nobody_reaches_is_named(begun, capsys, monkeypatch):
    monkeypatch.setattr(stop, "END_S", 0.1)
    monkeypatch.setattr(supervisors, "KILL_S", 0.1)
    folder = begun / "attempts" / "g00000-00"
    folder.mkdir(parents=True)
    held = files.take(folder)

    assert 2 == main(["stop", str(begun)])
    assert "could not be ended: g00000-00" in capsys.readouterr().err
    os.close(held)
    assert 0 == main(["stop", str(begun)])


def test_one_that_is_killed_elsewhere_is_waited_for(tmp_path):
    """Whoever carries the order may be closed as soon as it has ended."""
    held = files.take(tmp_path)

    class Slow:
        def signal_log_holder(self, log, number):
            asyncio.get_running_loop().call_later(0.2, os.close, held)

    asyncio.run(AdoptedSupervisor(tmp_path, Slow()).end(0.0))

    assert not files.is_taken(tmp_path)


def test_where_no_run_was_begun_there_is_nothing_to_stop(tmp_path, capsys):
    assert 2 == main(["stop", str(tmp_path)])
    assert "there is no run to stop" in capsys.readouterr().err
