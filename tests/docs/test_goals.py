"""What docs/performance.md says of goals, met and missed, is what the table of all goals says."""

import re
from pathlib import Path

import pytest
from tests.docs.support.pages import ROOT, links, name, pages

from benchmarks import compare

COUNT = re.compile(r"Of (\d+) goals, (\d+) are met, (\d+) are missed and (\d+) (?:is|are) not meas")
QUOTED = re.compile(r"\[[^\]]+\]\(\S*/([^/\s]+\.json) \"([^\"]+)\"\)")


def rows(text):
    """Cells of its table rows."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split(" |")] for line in lines]


def listed():
    """All goals, what was measured and whether they are met, as the benchmarks' page says."""
    readme = (ROOT / "benchmarks" / "README.md").read_text()
    return rows(readme.partition("**Goals**")[2].partition("\n**")[0])[1:]


def section():
    page = (ROOT / "docs" / "performance.md").read_text()
    return page.partition("## Goals")[2].partition("\n## ")[0]


def missed():
    return [(goal, value) for goal, value, met in compare.judged(compare.load_all()) if not met]


def test_the_page_begins_with_the_goals():
    page = (ROOT / "docs" / "performance.md").read_text()

    assert "Goals" == re.findall(r"^## (.+)$", page, re.MULTILINE)[0]


def test_goals_met_missed_and_not_measured_are_counted_as_they_are():
    counted = [int(one) for one in COUNT.search(section()).groups()]
    goals = listed()
    met = [met for *_, met in goals]
    unmeasured = [one for one in goals if one[2] == "not measured"]

    assert counted == [len(goals), met.count("yes"), met.count("**no**"), len(unmeasured)]
    assert counted[0] == sum(counted[1:])


def test_every_goal_missed_is_named_with_what_was_wanted_and_the_file_of_its_number():
    table = rows(section().partition("| missed |")[2].partition("\n\n")[0])
    named = [
        (what, wanted, *QUOTED.fullmatch(measured).groups()) for what, wanted, measured in table
    ]
    files = {name: one.path.name for name, one in compare.newest(compare.load_all()).items()}

    assert named == [
        (goal.says, goal.wanted, files[goal.name], goal.quantity) for goal, _ in missed()
    ]


def test_every_goal_that_no_result_speaks_of_is_named():
    named = rows(section().partition("| not measured |")[2].partition("\n\n")[0])
    unmeasured = [
        [what, wanted] for what, wanted, measured, _ in listed() if measured == "not measured"
    ]

    assert named == unmeasured


def machine_and_name(path):
    """What a result's file is called after, but for the day and how many there were before."""
    found = compare.load(path)
    return found.machine, found.name


@pytest.mark.parametrize("page", pages(), ids=name)
def test_results_are_the_newest_of_their_name_on_their_machine(page):
    newest = {(one.machine, one.name): one.path.name for one in compare.load_all(compare.RESULTS)}
    linked = {Path(link).name for link in links(page) if "results/" in link}
    results = [compare.RESULTS / one for one in linked if one.endswith(".json")]

    assert [] == [one.name for one in results if newest[machine_and_name(one)] != one.name]
