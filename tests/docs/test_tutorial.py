"""The tutorial as a reader does it: every file is written and every command typed as printed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorial"
FINAL = ROOT / "examples" / "tutorial"
"""What the files of the pages have become in the end."""
PAGES = ["first-run", "task", "harness", "reward", "learning"]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ROUNDS = "post/rounds.py:rounds?count="
FEW = "schedule.steps=2 schedule.groups_per_batch=2"
SHORTER = {
    "make demo": f"gyre train examples/quickstart.toml {FEW}",
    "gyre train post/post.toml": f"gyre train post/post.toml {FEW}",
    f'gyre evaluate tiny "{ROUNDS}16&seed=1" --config post/post.toml --n 1': (
        f'gyre evaluate tiny "{ROUNDS}4&seed=1" --config post/post.toml --n 1'
    ),
    f'gyre evaluate runs/post "{ROUNDS}16&seed=1" --n 1': (
        f'gyre evaluate runs/post "{ROUNDS}4&seed=1" --n 1'
    ),
}
"""Commands that take long, and what stands for them here."""
FINDS_FAULTS = "rm post/tasks/post-2/solution/partial.sh"
"""Part of the one block whose command ends with 1, as its page says."""
CHANGES_FILES = {"cp", "mkdir", "mv", "rm", "sed"}


def blocks(page):
    """Language, title and text of each, in order."""
    return [
        (kind, title or None, text)
        for kind, title, text in BLOCK.findall((FOLDER / f"{page}.md").read_text())
    ]


def is_file(kind, title):
    """A block with a title is a file, unless it shows what was printed somewhere."""
    return title is not None and kind != "text"


class Reader:
    """Somebody in a clone, or in as much of one as the pages need."""

    def __init__(self, folder):
        self.folder = folder
        self.pages = []
        """Those whose files are there already."""
        shutil.copytree(ROOT / "examples" / "quickstart", folder / "examples" / "quickstart")
        shutil.copy(ROOT / "examples" / "quickstart.toml", folder / "examples")
        (folder / ".venv").symlink_to(sys.prefix)

    def leafs_through(self, page):
        """Its files are there as they are at its end, and nothing was run."""
        for kind, title, text in blocks(page):
            if is_file(kind, title):
                self.write(title, text)
            elif kind == "sh":
                lines = [one for one in text.splitlines() if one.split()[0] in CHANGES_FILES]
                shell(self.folder, "\n".join(lines))
        self.pages.append(page)

    def reads(self, page):
        """Everything it says is done; what was printed, and each illustration of such."""
        said, shown = [""], []
        for kind, title, text in blocks(page):
            if is_file(kind, title):
                self.write(title, text)
            elif text.startswith("gyre watch "):
                said.append(watched(self.folder, text))
            elif kind == "sh":
                status, printed = shell(self.folder, SHORTER.get(text.strip(), text))

                assert int(FINDS_FAULTS in text) == status, printed
                said.append(printed)
            elif title is not None:
                shown.append(text)
            elif said[-1]:
                assert agrees(text, said[-1]), said[-1]
        self.pages.append(page)
        return "".join(said), shown

    def write(self, title, text):
        path = self.folder / title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return Reader(tmp_path_factory.mktemp("clone"))


def shell(folder, script):
    """Exit status and output of a script, typed in the clone's root."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout


def watched(folder, command):
    """What is printed by a command that serves a page until Ctrl-C; its link is followed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        command.split(),
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    said = ""
    try:
        while (link := re.search(r"http://\S+", said)) is None:
            line = process.stdout.readline()
            assert line, f"ended without a link: {said}"
            said += line
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
        )
        with opener.open(link[0], timeout=PATIENCE_S) as answer:
            assert "<html" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) in (0, 130)
    finally:
        process.kill()
        process.communicate()
    return said


def agrees(shown, said):
    """Every line that is shown was printed, in this order; blanks do not count."""
    printed = iter([" ".join(line.split()) for line in said.splitlines()])
    return all(" ".join(line.split()) in printed for line in shown.splitlines())


def words_at_the_left(shown):
    """What the lines of an illustration begin with, where that is a word."""
    return set(re.findall(r"^ *([A-Za-z][\w-]+)", shown, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_does_what_it_says(page, reader):
    for earlier in PAGES[len(reader.pages) : PAGES.index(page)]:
        reader.leafs_through(earlier)
    said, shown = reader.reads(page)

    assert set() == words_at_the_left("\n".join(shown)) - words_at_the_left(said), said


@pytest.mark.slow
def test_what_one_has_typed_is_what_comes_along(reader):
    for page in PAGES[len(reader.pages) :]:
        reader.leafs_through(page)
    post = reader.folder / "post"
    typed, final = files_of(post), files_of(FINAL)

    assert final == typed
    assert [] == [one for one in final if (FINAL / one).read_text() != (post / one).read_text()]


def files_of(folder):
    """All but what Python leaves of the modules it has read."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def test_every_page_leads_to_the_next():
    listed = re.findall(r"^\d\. \[.*\]\((.*)\.md\)", (FOLDER / "index.md").read_text(), re.M)

    assert PAGES == listed
    for page, following in zip(PAGES, [*PAGES[1:], "../models"], strict=True):
        end = (FOLDER / f"{page}.md").read_text().partition("## What you have, and what is next")[2]

        assert f"({following}.md)" in end, page
