"""Commands that take seconds print what their pages say they print."""

import re
import shlex
from itertools import pairwise

import pytest
from tests.docs.support.pages import ROOT, Block, blocks, name, pages

from gyre.cli.main import main

CHEAP = ("config", "model", "simulate")
SILENT = ("config", "model")
"""Of these also commands are run of which the page does not show what they print."""
ELSEWHERE = ("tutorial",)
"""Folders whose pages are walked through as a whole."""
NOT_HERE = re.compile(r" --seeds | --journal | fetch ")
"""What takes long, writes a file or needs a network."""
NOTHING = Block("", "", "")


def shown():
    """Commands alone in their block, with what the next block says that they print."""
    for page in pages():
        if page.parent.name in ELSEWHERE:
            continue
        for block, behind in pairwise([*blocks(page), NOTHING]):
            command = block.text.removeprefix("gyre ").strip()
            if block.language == "sh" and command != block.text and "\n" not in command:
                printed = behind.text if behind.language == "text" else ""
                yield name(page), command.partition(" > ")[0], printed


COMMANDS = [
    pytest.param(command, printed, id=f"{page}: gyre {command}")
    for page, command, printed in shown()
    if command.split()[0] in (CHEAP if printed else SILENT) and not NOT_HERE.search(command)
]


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_a_command_prints_what_its_page_says(command, printed, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    status = main(shlex.split(command))
    said = capfd.readouterr()

    assert (2 if "mistakes\n  " in printed else 0) == status
    assert said.out + said.err
    if printed:
        assert printed == said.out + said.err


def test_the_run_files_page_shows_every_action():
    found = {command.split()[1] for page, command, _ in shown() if page == "docs/configuration.md"}

    assert {"check", "show", "schema", "explain", "presets"} == found
