"""Commands at a real terminal: how wide it is, whether it has colours, and how they end."""

import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import redirect_stdout
from threading import Thread

import pytest
from tests.observability.conftest import Story
from tests.observability.support.journals import SMALL, simulated, told

from gyre.cli.main import main
from gyre.journal.journal import write
from gyre.observability.terminal.colors import columns
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of
from gyre.types.run_events import RunEnded, UseMeasured

COLOUR = re.compile(r"\x1b\[\d*m")
STEERING = re.compile(r"\x1b\[\d*[A-Za-z]")
WIDTHS = [80, 132, 50]


@pytest.fixture(scope="module")
def facts():
    return list(told(simulated(SMALL)[1]))


@pytest.fixture(scope="module")
def place(facts, tmp_path_factory):
    """The folder of a run that nobody works on, with a tree and a measurement of its use."""
    folder = tmp_path_factory.mktemp("run")
    use = UseMeasured(
        seconds=60.0, cells={0: 90.0, 1: 30.0}, executions_s=60.0, proxy_s=6.0, controller_s=6.0
    )
    last = facts[len(facts) // 2][0]
    half = [one for one in facts if one[0] <= last and not isinstance(one[1], RunEnded)]
    write(
        folder / "journal",
        header_of(SMALL, started_at=5.0),
        [*half, (last, use)],
        kinds=JOURNAL_EVENTS,
    )
    history = Story(execution="errand")
    history.call(1, 0, {"system": 100, "user": 20}, 30, text="Looking through everything there is.")
    history.write(folder)
    return folder


class Terminal:
    """A pseudo-terminal and what was shown on it."""

    def __init__(self, width):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self._stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._shown = b""
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self):
        try:
            while part := os.read(self._ours, 4096):
                self._shown += part
        except OSError:
            return  # As Linux says that the other side is closed.

    def run(self, *arguments):
        """The exit status of a command, and its text."""
        with self._stream, redirect_stdout(self._stream):
            status = main([str(one) for one in arguments])
        self._reader.join()
        os.close(self._ours)
        return status, self._shown.decode().replace("\r\n", "\n")


def widest(text):
    return max(columns(line) for line in STEERING.sub("", text).splitlines())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["status", "top"])
def test_lines_fit_the_terminal_and_80_columns(command, width, place, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    status, text = Terminal(width).run(command, place)

    assert 3 == status
    assert widest(text) <= min(80, width)
    assert COLOUR.search(text)
    assert "3.2 cores" in text


@pytest.mark.parametrize("command", ["status", "top", "inspect"])
def test_whoever_wants_no_colours_gets_none(command, place, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    _, text = Terminal(80).run(command, place)

    assert text
    assert not COLOUR.search(text)


def test_a_tree_is_cut_to_the_terminal(place, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    status, text = Terminal(50).run("inspect", place, "errand")

    assert 0 == status
    assert widest(text) <= 50
    assert COLOUR.search(text)


@pytest.mark.parametrize("command", ["status", "top", "inspect"])
def test_into_a_pipe_nothing_steers_a_terminal(command, place, capsys):
    main([command, str(place)])
    text = capsys.readouterr().out

    assert text
    assert not STEERING.search(text)


@pytest.mark.parametrize("command", ["status", "top", "inspect", "watch"])
def test_what_is_no_run_is_refused_with_status_2(command, tmp_path, capsys):
    assert 2 == main([command, str(tmp_path / "nowhere")])
    assert "nowhere" in capsys.readouterr().err


def test_a_run_that_has_taken_all_its_steps_ends_well(facts, tmp_path):
    write(tmp_path / "journal", header_of(SMALL, started_at=5.0), facts, kinds=JOURNAL_EVENTS)

    assert 0 == Terminal(80).run("status", tmp_path)[0]
    assert 0 == Terminal(80).run("top", tmp_path)[0]


def test_a_run_that_stopped_itself_has_status_1(facts, place, tmp_path):
    half = [one for one in facts if one[0] <= facts[len(facts) // 2][0]]
    ended = [*half, (half[-1][0], RunEnded(reason="too many void groups"))]
    write(tmp_path / "journal", header_of(SMALL, started_at=5.0), ended, kinds=JOURNAL_EVENTS)
    status, text = Terminal(80).run("status", tmp_path)

    assert 1 == status
    assert "too many void groups" in text
