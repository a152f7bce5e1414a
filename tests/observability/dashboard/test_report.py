"""Reports: every number is the journal's, a page asks for nothing, the same journal gives the same
bytes."""

import csv
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO, StringIO
from math import inf, nan

import pytest
from matplotlib.image import imread
from tests.observability.support.journals import SMALL, reward_of, simulated, told

from gyre.journal.journal import Resumed
from gyre.observability.dashboard.panels import PANELS, panels
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.dashboard.tree_sizes import TreeSize, trees
from gyre.observability.history.run import RunHistory
from gyre.observability.report.build import NUMBERS, PAGE, PARTS, PICTURES, STEPS, files
from gyre.observability.report.figures_cells import FAULTS, IDLE, TIMELINE
from gyre.observability.report.figures_executions import DURATIONS, STALENESS, WATER
from gyre.observability.report.figures_training import OBJECTIVE, PACE, REWARD, SAVED
from gyre.observability.report.model import ReportRun, beside_each_other, panels_of
from gyre.observability.report.plotting import themed
from gyre.observability.report.tables import as_json, difference, in_numbers, stands
from gyre.observability.terminal.text import spoken
from gyre.observability.what_if import SimulatedPlacement
from gyre.scheduler.messages import CellDied, CellRecovered
from gyre.types.ids import CellId
from gyre.types.run_events import (
    CheckpointFailed,
    EvaluationRound,
    ProxyRestarted,
    TransitionTimed,
    UseMeasured,
)

pytestmark = pytest.mark.slow
"""Matplotlib takes seconds, whichever test comes first."""

MOST_BYTES = 2_000_000
COMPARED = (
    SimulatedPlacement(
        placement="elastic", how="phi 0.5, mu 3", steps=12, minutes=100.0, staleness=1.4
    ),
    SimulatedPlacement(placement="async", how="1 train, 3 serve (best)", steps=12, minutes=150.0),
    SimulatedPlacement(placement="colocate", how="no such pace"),
)
SIZES = [
    (TreeSize(tokens=900 * one, sampled=200, calls=9, tool_calls=one, leaves=1 + one % 3), ending)
    for one in range(1, 20)
    for ending in ("completed", "timed-out")
]


def extras(end_s):
    """Facts that no simulated run has."""
    yield end_s * 0.2, UseMeasured(seconds=60.0, cells={0: 30.0}, executions_s=9.0, proxy_s=None,
                                   controller_s=3.0)  # fmt: skip
    yield end_s * 0.3, CheckpointFailed(version=3, reason="the <disk> is full")
    yield end_s * 0.5, Resumed(at=0.0)
    for version, mean in ((0, 0.25), (12, 0.75)):
        yield (
            end_s * 0.9,
            EvaluationRound(
                version=version, mean=mean, standard_error=0.05, num_valid=7, num_tasks=8
            ),
        )


def run_of(facts, *, label="small", **fields):
    history = RunHistory(SMALL.shape)
    history.record_all(facts)
    fields = {"ended": "finished", "seed": 0} | fields
    return ReportRun(label=label, history=history, panels=panels_of(history), **fields)


@pytest.fixture(scope="module")
def events():
    return simulated(SMALL)[1]


@pytest.fixture(scope="module")
def live(events):
    """A run with one of everything."""
    facts = list(told(events))
    facts = sorted([*facts, *extras(facts[-1][0])], key=lambda one: one[0])
    sizes = trees(SIZES, num_closed=50, kinds=("completed", "timed-out"))
    return run_of(facts, trees=sizes, compared=COMPARED, started_at=0.0)


@pytest.fixture(scope="module")
def bare(events):
    """The same run as a simulation journals it."""
    return run_of(events, is_simulated=True)


@pytest.fixture(scope="module")
def made(live):
    return files([live])


@pytest.fixture(scope="module")
def beside(live, bare):
    return files([live, bare], [REWARD, TIMELINE, STALENESS, SAVED, OBJECTIVE])


def test_what_is_counted_is_all_of_it_however_few_rows_are_drawn(events):
    facts = list(told(events))
    middle = len(facts) // 2
    away = [(facts[middle][0], ProxyRestarted(seconds=2.0))] * 250
    history = RunHistory(SMALL.shape)
    history.record_all([*facts[:middle], *away, *facts[middle:]])
    few = ViewWindow(at_s=history.now_s, from_s=0.0, to_s=history.now_s, points=10)
    run = ReportRun(label="small", history=history, panels=panels(history, few, PANELS))
    found = dict(in_numbers([run]).rows)
    timed = [fact for _, fact in facts if isinstance(fact, TransitionTimed)]

    assert f"{len(timed)}" == found["changes of role timed"]
    assert "250 mended, the slowest after 2.0 s" in FAULTS.says(run)


class Parsed(HTMLParser):
    """What a page consists of."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.addresses, self.labels, self.tables, self.texts = [], [], [], [], []
        self._cell = None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        named = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")
        self.addresses += [given[one] for one in named if one in given]
        if given.get("role") == "img":
            self.labels.append(given["aria-label"])
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = self.tables[-1][-1]

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data):
        self.texts.append(data)
        if self._cell is not None:
            self._cell[-1] += data


def page_of(found):
    return found[PAGE].decode()


def table(found, *head):
    """Rows under the head that begins so."""
    (rows,) = [one for one in Parsed(page_of(found)).tables if tuple(one[0][: len(head)]) == head]
    return rows[1:]


# Files


def test_the_same_journal_gives_the_same_bytes(events, bare):
    """No time of making, no name that chance chose, and no setting of the user's own."""
    parts = [TIMELINE, DURATIONS, PACE]
    again = files([run_of(events, is_simulated=True)], parts)

    assert again == files([bare], parts)
    assert {PAGE, NUMBERS, STEPS, "timeline.png", "durations.png", "steps.png"} == set(again)


def test_every_part_has_a_picture_where_there_is_something_to_draw(made, bare):
    few = {one.name for one in PARTS if one.needs(bare)}

    assert {PAGE, NUMBERS, STEPS} | PICTURES == set(made)
    assert {"timeline", "idle", "waterlevel", "groups", "staleness", "durations", "steps"} == few


def test_pictures_are_neither_empty_nor_cut(made):
    """The margin of each is blank, and what is within is not."""
    for name in PICTURES:
        drawn = imread(BytesIO(made[name]))[..., :3]
        edge = [drawn[0], drawn[-1], drawn[:, 0]]

        assert 1440 == drawn.shape[1], name
        assert all((one == 1.0).all() for one in edge), name
        assert (drawn != 1.0).any(axis=2).mean() > 0.01, name


# The page


@pytest.mark.parametrize("which", ["made", "beside"])
def test_a_page_asks_for_nothing(which, request):
    page = page_of(request.getfixturevalue(which))
    parsed = Parsed(page)

    assert len(page.encode()) < MOST_BYTES
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert [] == [one for one in parsed.addresses if not one.startswith("#")]
    assert {one[1:] for one in parsed.addresses} <= set(parsed.ids)
    assert [] == [one for one in re.findall(r"url\(([^)]*)\)", page) if not one.startswith("#")]
    assert [] == re.findall(r"<script|@import|<link", page)
    assert len(parsed.ids) == len(set(parsed.ids))


def test_pictures_in_the_page_have_the_colours_of_either_theme(made):
    """Each colour is a variable, which has a light and a dark value."""
    page = page_of(made)
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    used = {name for one in drawn for name in re.findall(r"var\((--x[0-9a-f]{6})\)", one)}
    colours = {variable: (light, dark) for light, (variable, dark) in themed().items()}

    assert len(PARTS) == len(drawn)
    assert [] == [one for picture in drawn for one in re.findall(r":\s*#[0-9a-f]{3,8}", picture)]
    assert used
    for name in used:
        light, dark = colours[name]
        assert f"{name}: light-dark({light}, {dark});" in page


def test_pictures_in_the_page_are_well_formed(beside):
    for drawn in re.findall(r"<svg.*?</svg>", page_of(beside), re.DOTALL):
        assert ET.fromstring(drawn).tag.endswith("svg")


def test_every_picture_says_in_words_what_it_shows(made):
    labels = Parsed(page_of(made)).labels

    assert len(PARTS) == len(labels)
    assert all(re.search(r"\d", one) for one in labels)
    assert any("from 0.100 at the first step to 0.760 at the last" in one for one in labels)
    assert any("elastic takes 33% less time than async." in one for one in labels)
    assert any("0.250 at version 0, 0.750 at version 12" in one for one in labels)


def test_what_others_wrote_is_shown_as_text(events, made):
    name = "<script>alert(1)</script>"
    page = page_of(files([run_of(events[:300], label=name)], []))

    assert "<script" not in page
    assert name in Parsed(page).texts
    assert "the <disk> is full" in " ".join(Parsed(page_of(made)).texts)


# Numbers


def test_numbers_in_tables_are_the_journals(live, made):
    ages = table(made, "staleness", "groups")
    steps = table(made, "step", "at")
    saved = table(made, "placement")

    assert [[str(age), str(groups)] for age, groups in live.panels["staleness"]["histogram"]] == [
        one[:2] for one in ages
    ]
    assert [f"{reward_of(step):.3g}" for step in range(12)] == [one[3] for one in steps]
    assert ["4,800"] * 12 == [one[-3] for one in steps]
    assert [spoken(one) for one in live.panels["steps"]["claim_s"]] == [one[5] for one in steps]
    assert [["elastic", "1.00"], ["async", "1.50"], ["colocate", "–"]] == [
        [one[0], one[3]] for one in saved[:3]
    ]


def test_parts_of_time_sum_to_all_of_it(made):
    for name, *parts in table(made, "", "serving"):
        assert 100.0 == pytest.approx(sum(float(one.rstrip("%")) for one in parts), abs=0.5), name


def test_all_that_is_drawn_lies_beside_the_page(live, made):
    (found,) = json.loads(made[NUMBERS])["runs"]
    rows = list(csv.DictReader(StringIO(made[STEPS].decode())))

    assert json.loads(json.dumps(live.panels)) == {
        name: one for name, one in found["panels"].items() if name != "trees"
    }
    assert live.history.now_s == found["end_s"]
    assert 1.5 == found["numbers"]["async against elastic"]
    assert [str(reward_of(step)) for step in range(12)] == [one["reward"] for one in rows]
    assert {"small"} == {one["run"] for one in rows}


def test_what_is_no_finite_number_is_absent():
    assert {"a": [None, None, 1.5]} == json.loads(as_json({"a": (nan, inf, 1.5)}))


# Several runs


def test_several_runs_stand_beside_each_other(live, bare, beside):
    rows = {name: cells for name, *cells in table(beside, "", "small (1)")}

    assert ["12", "12", "="] == rows["steps"]
    assert "–" == rows["reward, last step"][1]
    assert rows["time training"][2].endswith(" points")
    assert ["small (1)", "small (2)"] == [one.label for one in beside_each_other([live, bare])]
    assert [0, 1] == [one.place for one in beside_each_other([live, bare])]


def test_a_name_that_is_too_long_for_pictures_is_cut(live, bare):
    name = "long " * 50
    runs = beside_each_other([replace(live, label=name), replace(bare, label=name)])

    assert ["(1)", "(2)"] == [one.label[-3:] for one in runs]
    assert max(len(one.label) for one in runs) < 50
    assert "idle.png" in files(runs, [IDLE])


def test_a_name_is_no_formula_and_may_have_letters_of_any_script(bare):
    name = "cost $x_{ and 価格"
    found = files([replace(bare, label=name)], [TIMELINE])

    assert "timeline.png" in found
    assert name in Parsed(page_of(found)).texts


def test_runs_that_are_not_alike_are_still_drawn(live, events):
    """One takes a thousandth of the other's time, and has not come to a step."""
    short = run_of([(now / 1000, event) for now, event in events[:200]], label="short")
    found = in_numbers(beside_each_other([live, short]))

    assert PAGE in files([live, short], [TIMELINE, WATER, PACE])
    assert ["steps", "12", "0", "-100.0%"] in [list(row) for row in found.rows]


@pytest.mark.parametrize(
    ("value", "first", "expected"),
    [
        (1.5, 1.0, "+50.0%"),
        (0.5, 1.0, "-50.0%"),
        (1.0, 1.0, "="),
        (3.0, 0.0, "+3"),
        (None, 1.0, "–"),
        (1.0, None, "–"),
    ],
)
def test_a_difference_is_a_part_of_the_first(value, first, expected):
    assert expected == difference(value, first)


def test_a_difference_of_parts_is_in_points():
    assert "-12.5 points" == difference(0.25, 0.375, is_part=True)


# How a run stands


def test_a_run_that_has_not_ended_says_so(events, live):
    half = run_of(events[: len(events) // 2], state="silent", ended=None)
    goes = replace(half, state="running")
    torn = replace(live, problem="entry 7 makes no run")

    assert "A run of 12 steps" in stands(live)
    assert "which has ended: finished." in stands(live)
    assert "of 12 steps" in stands(half)
    assert "it was killed or interrupted" in stands(half)
    assert "is still running" in stands(goes)
    assert "read up to there only: entry 7 makes no run." in stands(torn)
    assert 'class="open"' in page_of(files([half], []))


def test_a_repair_is_drawn_and_told(events):
    """A cell that dies and returns is a fault with its time to repair."""
    cut = next(at for at, (now, _) in enumerate(events) if now > 1000)
    now = events[cut - 1][0]
    facts = [*events[:cut], (now, CellDied(cell=CellId(3)))]
    facts.append((now + 90, CellRecovered(cell=CellId(3), version=0)))
    found = files([run_of(facts)], [FAULTS])

    assert ["cell died", "cell 3 died", "90 s"] == [
        one[at] for one in table(found, "what") for at in (0, 1, 3)
    ]
    assert "faults.png" in found
