"""`gyre inspect`: what it prints, for whom, and how it fails."""

import json
import os
import pty
import resource
import subprocess
import sys

import pytest

from gyre.testing.tokenizer import write_tokenizer


def test_a_run_is_shown_execution_by_execution(gyre, folder):
    done = gyre("inspect", folder)
    shown = done.stdout.split("\n\n")

    assert (0, "") == (done.returncode, done.stderr)
    assert ["execution one  open, complete", "execution two  open, complete"] == [
        line for line in done.stdout.splitlines() if line.startswith("execution")
    ]
    assert 5 == len(shown)
    assert "root 1" in shown[1]


def test_one_execution_can_be_asked_for(gyre, folder):
    asked = gyre("inspect", folder, "two").stdout
    alone = gyre("inspect", folder / "executions" / "two.calls").stdout

    assert asked.startswith("execution two  open, complete\n  calls   3 (3 committed)\n")
    assert asked == alone
    assert gyre("inspect", folder).stdout.endswith(asked)


def test_leaves_come_after_the_tree(gyre, folder):
    shown = gyre("inspect", folder, "one", "--leaves").stdout

    assert "leaves  drawn with at most 5, seed 0\n  call  role" in shown
    assert 2 == sum("for" in line and "targets" in line for line in shown.splitlines())


def test_texts_are_decoded_with_the_tokenizer_of_the_run(gyre, folder, tmp_path):
    write_tokenizer(tmp_path / "model")
    shown = gyre("inspect", folder, "one", "--text").stdout

    assert "1 system    Be brief.\n" in shown
    assert "1 user      Where is the garden?\n" in shown
    assert "3 reply     Far away.\n" in shown
    assert "no tokenizer" not in shown


def test_without_its_tokenizer_only_replies_are_shown_and_it_says_so(gyre, folder, tmp_path):
    done = gyre("inspect", folder, "one", "--text")

    assert 0 == done.returncode
    assert f"no tokenizer at {tmp_path / 'model'}: of texts, only replies are shown" in done.stdout
    assert "3 reply     Far away.\n" in done.stdout
    assert "garden" not in done.stdout


def test_json_is_one_object_a_line(gyre, folder):
    found = [json.loads(line) for line in gyre("inspect", folder, "--json").stdout.splitlines()]

    assert ["one", "two"] == [one["execution"] for one in found]
    assert [3, 3] == [len(one["nodes"]) for one in found]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "nowhere: no such run folder or call log"),
        (["."], ".: expected a run folder with call logs in executions/, found none"),
        (["run", "three"], "run: no execution three; it has one, two"),
        (["note.txt"], "note.txt: not a call log: it does not begin with GYRECALL"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(gyre, folder, monkeypatch, arguments, expected):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "note.txt").write_text("A note, and no log.")
    done = gyre("inspect", *arguments)

    assert (2, "", f"gyre inspect: {expected}\n") == (done.returncode, done.stdout, done.stderr)


def test_a_damaged_log_does_not_hide_the_others(gyre, damaged):
    done = gyre("inspect", damaged)

    assert 2 == done.returncode
    assert done.stdout.startswith("execution one")
    assert "execution two" not in done.stdout
    assert done.stderr.startswith(f"gyre inspect: 1 of 2 logs are damaged, the first: {damaged}")
    assert 1 == done.stderr.count("\n")


def on_a_terminal(command, environment):
    """What a program writes when its output is a terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(command, stdout=child, env=environment, stdin=subprocess.DEVNULL)
    os.close(child)
    shown = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(parent)
    assert 0 == process.wait()
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_its_own_width(folder):
    command = [sys.executable, "-m", "gyre", "inspect", str(folder), "one"]
    environment = {**os.environ, "COLUMNS": "40", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    coloured = on_a_terminal(command, environment)
    plain = on_a_terminal(command, environment | {"NO_COLOR": "1"})

    assert "\x1b[32mmain" in coloured
    assert "\x1b" not in plain
    assert 40 == max(map(len, plain.splitlines()))
    assert "\x1b" not in on_a_terminal(command, environment | {"TERM": "dumb"})


def test_a_pipe_gets_whole_lines_without_colours(program, folder):
    narrow = {**os.environ, "COLUMNS": "40", "TERM": "xterm"}
    shown = program("inspect", folder, env=narrow).stdout

    assert "\x1b" not in shown
    assert 40 < max(map(len, shown.splitlines()))


def test_an_old_locale_is_no_reason_to_fail(program, folder):
    done = program("inspect", folder, env={**os.environ, "PYTHONIOENCODING": "latin-1"})

    assert (0, "") == (done.returncode, done.stderr)
    assert "root 1: a preface" in done.stdout


MOST_STARTS = 40
"""Of an interpreter that does nothing: far fewer than it takes to import torch."""


def test_it_starts_quickly(program, folder):
    """By the processor time of bare starts beside it, because a busy machine slows both down."""

    def nothing():
        return subprocess.run([sys.executable, "-c", "pass"])

    def spent_s(run):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert 0 == run().returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    found = [(spent_s(lambda: program("inspect", folder)), spent_s(nothing)) for _ in range(3)]
    commands, starts = zip(*found, strict=True)

    assert min(commands) < MOST_STARTS * min(starts)
