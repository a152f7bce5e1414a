"""What a terminal and a file are given while a run goes."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, simulated, told

from gyre.observability.history.state import RunState
from gyre.observability.terminal.colors import columns, printed
from gyre.observability.terminal.progress import REDRAW_S, WIDTH, Progress, block
from gyre.observability.terminal.text import spelled
from gyre.scheduler.messages import RunStarted
from gyre.types.run_events import RunEnded

ESCAPE = re.compile(r"\x1b\[(\d*)([A-Za-z])")


class Screen(io.StringIO):
    """A terminal that does what is written to it."""

    def isatty(self):
        return True

    @property
    def lines(self):
        """As somebody sees them in the end."""
        rows, row = [""], 0
        for part in re.split(r"(\x1b\[\d*[A-Za-z]|\n)", self.getvalue()):
            escape = ESCAPE.fullmatch(part)
            if escape is not None and escape[2] == "F":
                row -= int(escape[1])
            elif escape is not None and escape[2] == "J":
                rows = [*rows[:row], ""]
            elif part == "\n":
                row += 1
                rows += [""] * (row + 1 - len(rows))
            else:
                rows[row] += part if escape is None else ""
        return rows


class Latin(io.TextIOWrapper):
    """A stream of an old locale."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="latin-1", errors="strict")


@pytest.fixture(scope="module")
def facts():
    return list(told(simulated(SMALL)[1]))


def shown(stream, facts, **how):
    progress = Progress(stream, RunState(SMALL.shape, name="quickstart"), **how)
    for now, fact in facts:
        progress.record(now, fact)
    return progress


def test_a_terminal_shows_one_block_however_often_it_was_redrawn(facts):
    screen = Screen()
    progress = shown(screen, facts, colour=False)
    expected = printed(block(progress.run, facts[-1][0]), width=WIDTH, colour=False)

    assert screen.getvalue().count("quickstart") > 100
    assert [*expected, ""] == screen.lines


def test_the_block_says_where_the_run_is(facts):
    screen = Screen()
    half = len(facts) // 2
    shown(screen, facts[:half], colour=False).tick(facts[half][0] + 1)
    lines = screen.lines

    assert lines[0].startswith("quickstart  ████████████░░░")
    assert "step 5 of 12  " in lines[0]
    assert "h left" in lines[0]
    assert ["cells", "█", "█", "█", "·", "3", "training,", "1", "rollout"] == lines[1].split()
    assert "waterlevel 17 of 40" in lines[2]
    assert "3 of 8 groups pulled, 0 ready" in lines[3]
    assert "▁▃▅▇█" in lines[4]
    assert "0.340 at step 5" in lines[4]
    assert "1.10, 1.50 predicted" in lines[5]
    assert "version 3 published" in lines[5]
    assert "388 valid, 6 excluded" in lines[6]


def test_a_terminal_is_left_alone_until_it_is_time(facts):
    screen = Screen()
    progress = Progress(screen, RunState(SMALL.shape))
    progress.record(0.0, RunStarted())
    first = len(screen.getvalue())
    progress.tick(REDRAW_S / 2)

    assert 0 < first == len(screen.getvalue())
    progress.tick(REDRAW_S)
    assert first < len(screen.getvalue())


def test_the_end_is_shown_at_once_with_its_reason(facts):
    screen = Screen()
    progress = shown(screen, facts[:-1], colour=False)
    assert "finished" in screen.lines[0]
    progress.record(facts[-1][0], RunEnded(reason="stopped by hand"))

    assert "stopped by hand" in screen.lines[0]


def test_others_may_write_once_the_block_is_gone(facts):
    screen = Screen()
    progress = shown(screen, facts[:100], colour=False)
    progress.clear()
    screen.write("a warning\n")
    progress.tick(facts[99][0])

    assert "a warning" == screen.lines[0]
    assert screen.lines[1].startswith("quickstart")
    assert 9 == len(screen.lines)


def test_colours_are_for_those_who_want_them(facts):
    plain, coloured = Screen(), Screen()
    shown(plain, facts[:100], colour=False)
    shown(coloured, facts[:100])

    assert "\x1b[32m" not in plain.getvalue()
    assert "\x1b[36m" in coloured.getvalue()
    assert plain.lines == [re.sub(r"\x1b\[\d*m", "", one) for one in coloured.lines]


@pytest.mark.parametrize("size", [(3, 200), (24, 80), (2, 30), (24, 7), (1, 1), (0, 0)])
def test_a_block_fits_into_the_terminal(facts, size):
    lines, width = size
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, width, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        progress = Progress(stream, RunState(SMALL.shape, name="quickstart"), colour=False)
        progress.record(*facts[0])
        drawn = os.read(ours, 65536).decode().replace("\r\n", "\n")
    os.close(ours)
    rows = ESCAPE.sub("", drawn).split("\n")[:-1]

    assert (max(1, lines - 1) if 0 < lines < 8 else 7) == len(rows)
    assert all(columns(row) <= min(width or WIDTH, WIDTH) for row in rows)


def test_a_block_that_a_narrower_terminal_wrapped_is_erased_whole(facts):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        progress = Progress(stream, RunState(SMALL.shape, name="q"), colour=False)
        progress.record(*facts[0])
        rows = ESCAPE.sub("", os.read(ours, 65536).decode()).split("\r\n")[:-1]
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 30, 0, 0))
        progress.tick(10.0)
        again = os.read(ours, 65536).decode()
    os.close(ours)
    wrapped = sum(-(-columns(row) // 30) for row in rows)

    assert wrapped > len(rows)
    assert again.startswith(f"\x1b[{wrapped}F\x1b[J")


def test_a_file_gets_a_line_for_each_step_and_publication(facts):
    file = io.StringIO()
    shown(file, facts)
    lines = file.getvalue().splitlines()

    assert 1 + 12 + 4 + 1 == len(lines)
    assert "    0:00  quickstart: 12 steps of 8 x 8 executions, 4 cells, elastic" == lines[0]
    assert lines[1].startswith(" 1:29:54  step  1/12  reward 0.100  stale 0.00  2 cells")
    assert lines[4].startswith(" 2:57:15  version 3 published  270 MB in 2.0 s  waterlevel")
    assert "11:33:17  finished" == lines[-1]
    assert all(len(line) <= WIDTH for line in lines)
    assert "\x1b" not in file.getvalue()


def test_a_run_that_goes_on_says_only_what_is_new(facts):
    run = RunState(SMALL.shape)
    half = len(facts) // 2
    run.record_all(facts[:half])
    file = io.StringIO()
    progress = Progress(file, run)
    for now, fact in facts[half:]:
        progress.record(now, fact)

    assert "step  6/12" in file.getvalue().splitlines()[0]
    assert "step  5/12" not in file.getvalue()


def test_an_old_locale_gets_ascii(facts):
    stream = Latin()
    progress = shown(stream, facts)
    stream.flush()
    drawn = "\n".join(printed(block(progress.run, 1.0), width=WIDTH, colour=False))

    assert stream.buffer.getvalue().isascii()
    assert spelled(drawn, "latin-1").isascii()
    assert len(drawn) == len(spelled(drawn, "no-such-encoding"))
    assert drawn == spelled(drawn, "UTF-8") == spelled(drawn, None)


def test_a_stream_that_is_gone_does_not_stop_the_run(facts):
    closed = io.StringIO()
    progress = Progress(closed, RunState(SMALL.shape))
    closed.close()
    for now, fact in facts:
        progress.record(now, fact)

    assert 12 == progress.run.version


def test_a_pipe_that_nobody_reads_any_more_does_not_stop_the_run(facts):
    theirs, ours = os.pipe()
    os.close(theirs)
    stream = os.fdopen(ours, "w", encoding="utf-8", buffering=1)
    progress = shown(stream, facts)

    assert 12 == progress.run.version
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_many_cells_and_long_names_stay_within_the_width():
    shape = replace(SMALL.shape, num_cells=500)
    run = RunState(shape, name="a name\x1b[31m that is far too long for its column")
    run.record(0.0, RunStarted())
    lines = printed(block(run, 1e7), width=WIDTH, colour=False)

    assert all(columns(line) <= WIDTH for line in lines)
    assert "\x1b" not in "".join(lines)
    assert "500 rollout" in lines[1]
