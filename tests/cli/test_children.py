"""Child processes end with their context, and so does whatever they started."""

import os
import select
import signal
import sys
from contextlib import ExitStack

import pytest

from gyre.cli import demo as children
from gyre.cli.demo import ChildProcess

PYTHON = [sys.executable, "-c"]
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""
WITH_A_CHILD = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(inner.pid, flush=True)
inner.wait()
"""


def test_what_a_child_says_is_read_line_by_line():
    with ChildProcess([*PYTHON, "print('one'); print('two')"]) as child:
        said = list(child.said())
        status = child.wait()

    assert (["one", "two"], 0) == (said, status)


def test_its_environment_is_ours_and_what_was_added():
    code = "import os; print(os.environ['ADDED'], os.environ['PATH'])"
    with ChildProcess([*PYTHON, code], environment={"ADDED": "yes"}) as child:
        assert [f"yes {os.environ['PATH']}"] == list(child.said())


def test_a_child_ends_with_its_context():
    with ChildProcess([*PYTHON, "import signal; print('on', flush=True); signal.pause()"]) as child:
        assert "on" == next(child.said())

    assert -15 == child.wait()


def test_what_a_child_started_ends_with_it():
    with ChildProcess([*PYTHON, WITH_A_CHILD]) as child:
        watch = os.pidfd_open(int(next(child.said())))
        assert [] == select.select([watch], [], [], 0)[0]

    assert [watch] == select.select([watch], [], [], 10)[0]
    os.close(watch)


def test_a_child_that_does_not_listen_is_made_to_end(monkeypatch):
    monkeypatch.setattr(children, "STOP_S", 0.1)
    with ChildProcess([*PYTHON, STUBBORN]) as child:
        assert "ready" == next(child.said())

    assert -9 == child.wait()


def test_a_child_is_in_a_session_of_its_own():
    with ChildProcess([*PYTHON, "import os; print(os.getsid(0) == os.getpid())"]) as child:
        assert ["True"] == list(child.said())


def test_the_error_of_the_context_is_kept():
    with pytest.raises(ZeroDivisionError), ChildProcess([*PYTHON, "input()"]):
        raise ZeroDivisionError


def interrupted_at_once(stack):
    """The signal is there before the child is, as when Ctrl-C comes at the wrong moment."""

    class Interrupted(ChildProcess):
        def __init__(self, command, **how):
            signal.raise_signal(signal.SIGINT)
            super().__init__(command, **how)
            children_made.append(self)

    children_made = []
    try:
        Interrupted.start(stack, [*PYTHON, "import signal; signal.pause()"])
    except KeyboardInterrupt:
        return children_made
    raise AssertionError("the signal was lost")


@pytest.fixture
def listening():
    """A shell starts a job in the background with SIGINT ignored, and pytest inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_during_the_start_comes_after_it_and_loses_nothing(listening):
    with ExitStack() as stack:
        (child,) = interrupted_at_once(stack)

    assert -15 == child.wait()
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)
