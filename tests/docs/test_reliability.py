"""What the page of cases says is shown by tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"`([\w/]+\.py)::(test_\w+)` \|$")
PAGE = (ROOT / "docs" / "reliability.md").read_text().splitlines()
CASES = [line for line in PAGE if re.match(r"\| (?!what comes|\|)", line) and "---" not in line]


def test_there_are_cases():
    assert 30 < len(CASES)


@pytest.mark.parametrize("line", CASES)
def test_a_case_is_shown_by_a_test_that_there_is(line):
    path, name = SHOWN.search(line).groups()

    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)
