"""The program itself: its commands, its help, and how it ends."""

import socket
import subprocess
import sys
from argparse import Namespace
from importlib.metadata import version
from pathlib import Path

import pytest

from gyre.cli.arguments import is_given
from gyre.cli.main import COMMANDS, main
from gyre.version import fingerprint


def test_every_command_is_listed_and_explains_itself(gyre):
    listed = gyre("--help").stdout
    for name, summary in COMMANDS.items():
        explained = gyre(name, "--help")

        assert summary in " ".join(listed.split())
        assert 0 == explained.returncode
        assert explained.stdout.startswith(f"usage: gyre {name} ")


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["inspect"], ["export", "run"]])
def test_what_it_does_not_understand_it_answers_with_its_usage(gyre, arguments):
    done = gyre(*arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("usage: gyre")


def test_the_installed_program_is_this_one(gyre, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    program = subprocess.run(
        [f"{sys.prefix}/bin/gyre", "--help"], capture_output=True, text=True, check=True
    )

    assert gyre("--help").stdout == program.stdout


def test_a_failure_that_can_be_mended_is_one_line_and_status_2(capsys):
    assert 2 == main(["inspect", "nowhere"])
    assert ("", "gyre inspect: nowhere: no such run folder or call log\n") == capsys.readouterr()


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    """More than a pipe holds, so that the writer is still at it when the reader goes."""
    many = folder / "executions"
    for number in range(300):
        (many / f"copy-{number}.calls").write_bytes((many / "one.calls").read_bytes())
    command = f"{sys.executable} -m gyre inspect {folder} --json"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -c 100 >/dev/null"],
        capture_output=True,
        text=True,
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_it_says_which_gyre_it_is(gyre):
    done = gyre("--version")

    assert (0, "") == (done.returncode, done.stderr)
    assert f"gyre {version('gyre-rl')}, sources {fingerprint()}\n" == done.stdout


def test_what_would_steer_a_terminal_is_spelled_out_in_an_error(gyre):
    done = gyre("inspect", "a\x1b[31mb\x9bc\u202e")

    assert "gyre inspect: a\\x1b[31mb\\x9bc\\u202e: no such run folder or call log\n" == done.stderr


def test_an_argument_that_nobody_knows_is_spelled_out_too(gyre):
    done = gyre("status", "x", "\x1b[2J")

    assert 2 == done.returncode
    assert done.stderr.endswith("gyre: error: unrecognized arguments: \\x1b[2J\n")


@pytest.mark.parametrize("command", ["resume", "stop", "status", "inspect"])
def test_a_name_that_no_file_can_have_is_one_line(gyre, command):
    done = gyre(command, "x" * 300)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"gyre {command}: xxx")
    assert done.stderr.endswith(": File name too long\n")
    assert 1 == done.stderr.count("\n")


def test_a_file_that_nobody_named_is_a_fault_of_ours():
    args = Namespace(run=Path("runs/one"), overrides=["run.folder=/tmp/two"], seed=3, out=None)
    given = ["runs/one", "runs/one/journal", Path("runs/one/deep/in").absolute(), "/tmp/two/x"]
    ours = ["runs/other", "runs", "/tmp", "/usr/lib/gyre/file.json", None, 7]

    assert [True] * 4 == [is_given(args, str(one)) for one in given]
    assert [False] * 6 == [is_given(args, one) for one in ours]


def test_values_are_taken_before_and_after_an_option(gyre):
    written = gyre("config", "show", "run.seed=3", "--origin", "examples/run.toml").stderr
    before = gyre("config", "show", "examples/run.toml", "run.seed=3", "--origin")
    after = gyre("config", "show", "examples/run.toml", "--origin", "run.seed=3")

    assert "unrecognized arguments: examples/run.toml" in written
    assert before.stdout == after.stdout
    assert "seed = 3  # override" in after.stdout


def test_a_value_means_nothing_to_a_command_without_values(gyre):
    done = gyre("status", "x", "run.seed=3")

    assert 2 == done.returncode
    assert done.stderr.endswith("gyre: error: unrecognized arguments: run.seed=3\n")


@pytest.mark.parametrize("name", ["a\nb", "a b/../c?d#e", "a\udc80b", "\x1b[2J"])
def test_any_name_of_an_execution_is_one_part_of_the_proxys_address(gyre, tmp_path, name):
    """Nobody listens at the port, which is held here so that nobody else does either."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        (tmp_path / "proxy.url").write_text(f"http://127.0.0.1:{held.getsockname()[1]}\n")
        (tmp_path / "admin.token").write_text("token\n")
        done = gyre("close", tmp_path, name)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("gyre close: no proxy answers at http://127.0.0.1:")


def test_a_page_of_what_is_no_journal_is_refused(gyre, tmp_path):
    other = tmp_path / "other"
    other.write_text("something else")

    assert (2, f"gyre watch: {other}: not a run journal: it does not begin with GYREJRNL\n") == (
        (done := gyre("watch", other)).returncode,
        done.stderr,
    )


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 5000, "a", "a = '\udc80'"])
@pytest.mark.parametrize("command", [["simulate"], ["plan", "--staleness", "1"], ["train"]])
def test_a_file_that_is_no_toml_is_one_line(gyre, tmp_path, command, text):
    path = tmp_path / "file.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = gyre(*command, path)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"gyre {command[0]}: {path}: not TOML: ")
    assert 1 == done.stderr.count("\n")
