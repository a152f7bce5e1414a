"""The page on faults names every fault and every invariant that there is."""

import re
from pathlib import Path

from tests.chaos_sim.faults import KINDS
from tests.chaos_sim.planted import PLANTED

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
SIMULATION = PAGE.partition("## The simulation of faults")[2]


def first_cells(text):
    return " | ".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))


def test_every_fault_has_its_line():
    assert set(KINDS) == set(re.findall(r"`([a-z ]+)`", first_cells(SIMULATION)))


def test_every_invariant_that_finds_a_bug_has_its_line():
    found = {one for bug in PLANTED.values() for one in bug.breaks} - {"books"}

    assert found <= set(re.split(r", | \| ", first_cells(PAGE)))


def test_the_bug_of_the_page_is_planted():
    (named,) = re.findall(r'--planted "(.*?)"', PAGE)

    assert named in PLANTED
