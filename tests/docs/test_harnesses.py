"""The page on agent programs names those that there are, with their versions."""

import re
from pathlib import Path

from gyre.harnesses.registry import PROGRAMS, locked_versions

PAGE = (Path(__file__).parents[2] / "docs" / "harnesses.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([\d.]+) \| ([\d., ]+) \|", re.MULTILINE)


def test_the_table_has_every_program_with_its_versions():
    expected = {
        name: (one.version, ", ".join(locked_versions(one))) for name, one in PROGRAMS.items()
    }

    assert expected == {name: (pinned, locked) for name, pinned, locked in ROW.findall(PAGE)}


def test_every_variable_and_file_that_the_page_names_is_in_a_program():
    folder = Path(__file__).parents[2] / "src" / "gyre" / "harnesses"
    sources = "\n".join(path.read_text() for path in folder.glob("*.py"))
    told = PAGE.partition("## What a program is told")[2].partition("## A command")[0]
    named = re.findall(r"`([A-Z_]{4,})=|`(\.[a-z/.]+)`", told)

    assert named
    assert [] == [one for pair in named for one in pair if one and one not in sources]
