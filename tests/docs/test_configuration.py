"""The run file's page: its commands print what it says, and its reference is the sections' own."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
SHELL = re.compile(r"^```sh\ngyre (.*?)\n```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
COMMANDS = [(re.sub(r" > \S+$", "", command), text) for command, text in SHELL.findall(PAGE)]
SCRIPT = ROOT / "scripts" / "reference"


@pytest.mark.parametrize(("command", "text"), COMMANDS, ids=[one for one, _ in COMMANDS])
def test_commands_print_what_the_page_says(command, text, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    status = main(shlex.split(command))
    said = capfd.readouterr()

    assert (2 if "mistakes\n  " in text else 0) == status
    assert said.out + said.err
    if text:
        assert text == said.out + said.err


def test_the_page_shows_every_action():
    shown = {command.split()[1] for command, _ in COMMANDS}

    assert {"check", "show", "schema", "explain", "presets"} == shown


def test_the_reference_is_what_the_sections_say():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)

    assert (0, "") == (done.returncode, done.stderr)


def test_a_stale_reference_is_noticed(tmp_path):
    """The script works beside its own page, so a copy of both is changed."""
    for folder in ("docs", "scripts"):
        (tmp_path / folder).mkdir()
    script = tmp_path / "scripts" / "reference"
    script.write_text(SCRIPT.read_text())
    page = tmp_path / "docs" / "configuration.md"
    page.write_text(PAGE.replace("`supply_dwell_s` |", "`supply_dwel_s` |"))
    stale = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    subprocess.run([sys.executable, script], check=True)

    assert (1, "docs/configuration.md is out of date: run `make map`\n") == (
        stale.returncode,
        stale.stderr,
    )
    assert PAGE == page.read_text()
