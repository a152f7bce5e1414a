"""Python in the pages runs, and prints what the page says it prints."""

import shlex
import subprocess
import sys
from itertools import pairwise

import pytest
from tests.docs.support.pages import Block, blocks, name, pages

NOTHING = Block("", "", "")


def examples(page):
    """Programs with the block before and the block behind each."""
    found = [NOTHING, *blocks(page), NOTHING]
    return [
        (before, block, behind)
        for (before, block), (_, behind) in pairwise(pairwise(found))
        if block.language == "python" and not block.is_file
    ]


def run(argv, folder):
    return subprocess.run(argv, capture_output=True, text=True, cwd=folder)


PAGES = [page for page in pages() if examples(page)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_print_what_the_page_says(page, tmp_path):
    """Commands right before a program that end with a file which it names are run first."""
    for before, block, behind in examples(page):
        if before.language == "sh" and f'"{before.text.split()[-1]}"' in block.text:
            for line in before.text.splitlines():
                done = run([sys.executable, "-m", *shlex.split(line)], tmp_path)
                assert (0, "") == (done.returncode, done.stderr), before.where
        done = run([sys.executable, "-W", "error", "-c", block.text], tmp_path)

        assert "text" == behind.language, f"{block.where}: expected what it prints, behind it"
        assert (behind.text, "") == (done.stdout, done.stderr), block.where


def test_there_is_an_example_to_run():
    assert {"trajectories.md", "journal.md"} <= {page.name for page in PAGES}
