"""The simulator's page: its commands run, its example prints what it says, its options exist."""

import re
import shlex
from pathlib import Path

import pytest

from gyre.cli.main import main, parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulator.md").read_text()
SHELL = re.compile(r"^```sh\ngyre (.*?)\n```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
COMMANDS = SHELL.findall(PAGE)


def test_the_example_prints_what_the_page_says(capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = {command: text for command, text in COMMANDS if text}
    (command,) = shown

    assert 0 == main(shlex.split(command))
    assert shown[command] == capfd.readouterr().out


@pytest.mark.parametrize("command", [command for command, _ in COMMANDS])
def test_every_command_is_understood(command):
    assert "simulate" == parser().parse_args(shlex.split(command)).command


def test_every_option_is_described_and_every_described_option_exists():
    (commands,) = [one for one in parser()._actions if isinstance(one.choices, dict)]
    options = {
        name
        for action in commands.choices["simulate"]._actions
        for name in action.option_strings
        if name.startswith("--") and name != "--help"
    }
    table = PAGE.partition("## Options")[2].partition("## ")[0]
    first = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("|")]

    assert options == {name for cell in first for name in re.findall(r"`(--[a-z-]+)`", cell)}
