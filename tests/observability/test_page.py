"""The page as it lies in the package: whole, of its own, legible, and right in what it computes."""

import re
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

import gyre.observability.dashboard
from gyre.observability.resource_use import OTHERS, ROLES

PAGE = Path(gyre.observability.dashboard.__file__).parent / "page"
MODULES = sorted(PAGE.glob("*.js"))
STYLES = sorted(PAGE.glob("*.css"))
MOST_LINES = 400
MOST_SENTENCE = 100
MOST_COLUMNS = 100
LEAST_TEXT_CONTRAST = 4.5
LEAST_DRAWN_CONTRAST = 3.0
CHECKS = Path(__file__).with_name("page_checks.mjs")

UNDER_TEXT = re.compile(r"--(?:[tpv]-|d-|ground|panel)")
BENEATH = {"--c-grid"}
"""Drawn to be behind everything else."""


def variables():
    """Every variable of the style sheets with what it is in the light and in the dark."""
    found = {}
    for style in STYLES:
        for name, value in re.findall(r"^  (--[\w-]+): ([^;]+);", style.read_text(), re.M):
            both = re.fullmatch(r"light-dark\((#\w{6}), (#\w{6})\)", value)
            if both:
                found[name] = both.groups()
    return found


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [
        one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """As WCAG defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_what_it_is_said_to_be():
    assert (21.0, 1.0) == (
        pytest.approx(contrast("#000000", "#ffffff")),
        contrast("#123456", "#123456"),
    )


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_is_one_sentence_and_short(module):
    lines = module.read_text().splitlines()

    assert re.fullmatch(r"// .*\.", lines[0])
    assert MOST_SENTENCE >= len(lines[0])
    assert MOST_LINES >= len(lines)
    assert [] == [number for number, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_what_a_module_imports_is_there(module):
    found = re.findall(r'^import .* from "(.*)";|^import "(.*)";', module.read_text(), re.M)
    names = [one or other for one, other in found]

    assert [] == [name for name in names if not (name.startswith("./") and (PAGE / name).is_file())]


def test_what_the_page_links_to_is_there():
    linked = re.findall(r'(?:src|href)="(page/[^"]+)"', (PAGE / "index.html").read_text())

    assert {"page/app.js", "page/icon.svg", *(f"page/{one.name}" for one in STYLES)} == set(linked)
    assert [] == [name for name in linked if not (PAGE.parent / name).is_file()]


@pytest.mark.parametrize("path", sorted(PAGE.iterdir()), ids=lambda path: path.name)
def test_nothing_is_asked_of_anybody_else(path):
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", path.read_text())

    assert [] == [one for one in addresses if one not in ("http://www.w3.org/2000/svg",)]


@pytest.mark.parametrize("path", [*MODULES, PAGE / "index.html"], ids=lambda path: path.name)
def test_what_agents_wrote_never_becomes_markup(path):
    banned = r"(?:inner|outer|insertAdjacent)HTML|document\.write|\beval\(|new Function|srcdoc"
    inline = r"<script(?![^>]*src=)|\son\w+=\"|\sstyle=\""

    assert [] == re.findall(f"{banned}|{inline}", path.read_text())


def test_every_colour_has_one_for_the_light_and_one_for_the_dark():
    named = {
        name
        for style in STYLES
        for name, value in re.findall(r"^  (--[\w-]+): ([^;]+);", style.read_text(), re.M)
        if value != "transparent"
    }

    assert named == set(variables())


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_drawn_colour_stands_out_from_the_panel(theme):
    known = variables()
    panel = known["--panel"][theme]
    drawn = {name: both[theme] for name, both in known.items() if name.startswith("--c-")}

    assert {} == {
        name: round(found, 2)
        for name, colour in drawn.items()
        if name not in BENEATH and (found := contrast(colour, panel)) < LEAST_DRAWN_CONTRAST
    }


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(theme):
    known = variables()
    texts = ["--c-ink", "--c-ink-2", "--accent", "--problem", "--good"]
    plain = [(text, ground) for text in texts for ground in ("--panel", "--ground")]
    marked = [("--c-ink", name) for name in known if UNDER_TEXT.match(name)]

    assert {} == {
        pair: round(found, 2)
        for pair in plain + marked
        if (found := contrast(known[pair[0]][theme], known[pair[1]][theme])) < LEAST_TEXT_CONTRAST
    }


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_roles_of_cells_that_follow_one_another_differ_in_more_than_hue(theme):
    """Serving, entering, training: the middle one is hatched, the others differ in lightness."""
    hatched = set(
        re.findall(
            r'"([\w ]+)"',
            re.search(r"HATCHED = new Set\((.*?)\)", (PAGE / "colours.js").read_text())[1],
        )
    )
    states = ["serving", "entering", "training", "leaving", "waiting"]

    assert all((one in hatched) != (other in hatched) for one, other in pairwise(states[:3]))
    assert {"entering", "leaving", "waiting", "fenced", "switching", "empty seats"} == hatched


def test_every_word_that_is_drawn_has_a_colour():
    known = variables()
    words = set()
    for module in MODULES:
        text = module.read_text()
        words |= set(re.findall(r'(?:word: |colour\()"([\w -]+)"', text))
    words |= {"serving", "entering", "training", "leaving", "waiting", "fenced", "dead"}
    words |= {"completed", "timed-out", "crashed", "cancelled", "never-started", "all"}
    words |= {f"group {state}" for state in ("queued", "running", "assessing", "ready", "assigned")}
    words |= {*ROLES, *OTHERS}
    words |= {f"run-{number}" for number in range(4)}

    assert set() == {f"--c-{re.sub('[^a-z0-9]+', '-', word)}" for word in words} - set(known)


def test_every_setting_of_a_panel_is_in_its_order():
    """A panel that the order does not name would come first."""
    order = re.search(r"const ORDER = \[(.*?)\]", (PAGE / "runview.js").read_text(), re.S)[1]
    made = [
        name
        for module in ("panels.js", "counts.js", "curves.js", "use.js", "kept.js", "faults.js")
        for name in re.findall(r'\bid: "(\w+)"', (PAGE / module).read_text())
    ]

    assert sorted(made) == sorted(re.findall(r'"(\w+)"', order))


@pytest.mark.slow
def test_what_the_page_computes_is_right():
    """Each check is a sentence; Node runs them, because they are about modules of a browser."""
    found = subprocess.run(
        ["node", str(CHECKS), str(PAGE)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert (0, "") == (found.returncode, found.stderr)
    assert 20 <= len(found.stdout.splitlines())


def test_the_page_is_in_the_package():
    """Every file matches what setuptools is told to pack."""
    told = tomllib.loads((PAGE.parents[4] / "pyproject.toml").read_text())
    patterns = told["tool"]["setuptools"]["package-data"]["gyre"]

    assert set(PAGE.iterdir()) <= {
        path for pattern in patterns for path in PAGE.parents[2].glob(pattern)
    }
