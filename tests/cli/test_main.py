"""The program itself: its commands, its help, and how it ends."""

import subprocess
import sys

import pytest

from gyre.cli.main import COMMANDS, main


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
