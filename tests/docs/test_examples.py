"""Python in the pages runs, and prints what the page says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n+^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n", re.MULTILINE)
PAGES = [
    page
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if PYTHON.search(page.read_text())
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_the_page_says(page):
    text = page.read_text()
    examples = EXAMPLE.findall(text)
    printed = [
        subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
        for code, _ in examples
    ]

    assert len(PYTHON.findall(text)) == len(examples)
    assert [(expected, "") for _, expected in examples] == [
        (done.stdout, done.stderr) for done in printed
    ]


def test_there_is_an_example_to_run():
    assert "trajectories.md" in [page.name for page in PAGES]
