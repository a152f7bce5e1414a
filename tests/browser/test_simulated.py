"""A simulated run in a real browser: gone through by mouse and by keys, and beside another."""

import json
import re
import subprocess
import sys

import pytest
from tests.browser.books import Books
from tests.browser.serving import ROOT, watching
from tests.browser.shown import number, seconds

from gyre.scheduler.messages import StepTaken

FILE = "examples/simulate.toml"
OTHER = "schedule.extra_dispatch=1.5"
"""What a second run does otherwise."""


@pytest.fixture(scope="module")
def journals(tmp_path_factory):
    """Two simulations of the same machines, from the command line."""
    folder = tmp_path_factory.mktemp("simulated")
    found = []
    for name, more in (("one", ()), ("other", (OTHER,))):
        path = folder / name
        command = [sys.executable, "-m", "gyre", "simulate", FILE, *more, "--journal", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        found.append(path)
    return found


@pytest.fixture(scope="module")
def books(journals):
    return [Books(path) for path in journals]


@pytest.fixture(scope="module")
def link(journals):
    with watching(*journals) as found:
        yield found


@pytest.fixture(scope="module")
def page(link, opened_once):
    return opened_once(link)


@pytest.fixture
def one(page, books):
    """The first run at its end, as when it was opened."""
    page.go("view=run&runs=a")
    page.wait(books[0].tiles(books[0].end_s), page.tiles)
    return page


def agrees(shown, books, run=0):
    """What is shown is the run at the moment of the address, which follows whoever drags."""

    def differs():
        at = books.end_s if shown.at is None else min(shown.at, books.end_s)
        if not (shown.at is None or books.is_clear(at)):
            return f"{at}: a moment at which something happens"
        expected = (books.tiles(at), books.cells(at))
        found = (shown.tiles(run), shown.cells(run))
        return None if expected == found else (at, expected, found)

    shown.wait(None, differs)


def test_it_is_said_to_be_simulated_and_to_have_no_trees(one):
    assert "ended: finished, simulated" == one.badge()
    one.wait_until(lambda: "no call logs" in one.panel("trees").inner_text())


def test_the_slider_goes_anywhere_by_keys(one, books):
    reached = [None]
    for keys in (["PageDown"], ["ArrowLeft"] * 3, ["Home", "PageUp"]):
        for key in keys:
            one.slider.press(key)
        one.wait_until(lambda: one.at not in reached)
        agrees(one, books[0])
        reached.append(one.at)
    one.slider.press("End")
    one.wait(None, lambda: one.at)
    agrees(one, books[0])

    assert reached[1] > reached[2] > reached[3]


def test_the_slider_goes_anywhere_by_mouse(one, books):
    box = one.slider.bounding_box()
    one.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    one.page.mouse.down()
    for part in (0.8, 0.33, 0.61):
        one.page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2, steps=5)
        one.wait(pytest.approx(part * books[0].end_s, rel=0.05), lambda: one.at)
        agrees(one, books[0])
    one.page.mouse.up()


def test_it_goes_from_step_to_step_and_follows_again(one, books):
    times = [at for at in books[0].times(StepTaken) if at < books[0].end_s]
    for at in (times[-1], times[-2]):
        one.page.get_by_role("button", name="To the step before").click()

        one.wait(pytest.approx(at), lambda: one.at)
    one.page.get_by_role("button", name="To the next step").click()
    one.wait(pytest.approx(times[-1]), lambda: one.at)
    one.page.get_by_role("button", name="Follow").click()
    one.wait(None, lambda: one.at)
    agrees(one, books[0])


def test_a_click_on_the_timeline_goes_to_a_moment_that_was_drawn_there(one, books):
    """The pixels of each row are of the colour of what its cell did then."""
    plot = one.plot("roles", "Roles of cells")
    drawing = plot.locator(".drawing")
    box = drawing.bounding_box()
    compared = 0
    for part in (0.25, 0.47, 0.7):
        x = round(box["width"] * part)
        colours, swatches = one.column(plot, x), one.swatches(plot)
        drawing.click(position={"x": x, "y": 20})
        one.wait_until(lambda: one.at is not None)
        for cell, state in books[0].cells(one.at).items():
            compared += 1
            assert swatches[state] == colours[cell]
        agrees(one, books[0])
        one.go("view=run&runs=a")
        one.wait(books[0].tiles(books[0].end_s), one.tiles)

    assert 3 * books[0].shape.num_cells == compared


def test_a_drag_looks_closer_and_a_button_at_the_whole_again(one, books):
    drawing = one.plot("water", "Waterlevel and capacity").locator(".drawing")
    box = drawing.bounding_box()
    one.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    one.page.mouse.up()

    one.wait_until(lambda: {"from", "to"} <= one.address.keys())
    start, end = float(one.address["from"]), float(one.address["to"])
    assert 0.3 * books[0].end_s < start < end < 0.65 * books[0].end_s
    one.wait_until(lambda: all_within(one, start, end))
    one.page.get_by_role("button", name="Whole run").click()
    one.wait_until(lambda: not {"from", "to"} & one.address.keys())


def all_within(shown, start, end):
    """Whether the rows of the table are of this window, but for what held when it began."""
    _, rows = shown.table("water", "Waterlevel and capacity")
    times = [seconds(row[0]) for row in rows[1:]]
    return bool(times) and start - 60 <= min(times) and max(times) <= end + 60


def test_the_waterlevel_is_that_of_the_journal_row_by_row(one, books):
    head, rows = one.table("water", "Waterlevel and capacity")
    level = head.index("waterlevel")
    first = books[0].entries[0][0]
    found = {number(row[level]) for row in rows if seconds(row[0]) > first + 60}
    times = sorted({now for now, _ in books[0].entries})
    levels = {number(books[0].tiles(now)["waterlevel"]) for now in times}

    assert len(found) > 10
    assert found <= levels


PLOTS = [
    ("groups", "Groups by state"),
    ("water", "Waterlevel and capacity"),
    ("supply", "Supply"),
    ("time", "Time of each step"),
    ("time", "Cells in training at each step"),
    ("staleness", "Staleness of trained groups"),
    ("durations", "Duration of executions"),
]


@pytest.mark.parametrize(("panel", "title"), PLOTS)
def test_a_plot_reads_out_what_its_table_holds(one, panel, title):
    """Few points, because every one is gone to by its key."""
    head, rows = one.table(panel, title)
    said = one.read_plot(panel, title, most=12)

    assert said
    for text in said:
        place, values = read_out(text)
        assert any(place in row and all(value in row for value in values) for row in rows), (
            text,
            head,
            rows[:20],
        )


def read_out(text):
    """Where a plot was read, and every value that it said there."""
    where, _, rest = text.partition(": ")
    parts = re.split(r"[,;] (?=[a-z])", rest.partition(" (")[0] if "%" in rest else rest)
    found = [re.search(r"(?:^| )(\S+(?: (?:ms|s|min|h|d)\b(?: \d+ \w+)?)?)$", one) for one in parts]
    return re.sub("^(at|step) ", "", where), [one[1] for one in found if one]


def test_news_that_are_told_again_stand_there_once(opened, link):
    """Whoever lost the connection is told the newest once more."""
    shown = opened(link)
    told = []
    line = {"at_s": 1.0, "text": "step 1 of 12"}
    news = json.dumps({"run": "a", "state": "ended", "ended": "finished", "problem": None,
                       "now_s": 1.0, "moment": None, "lines": [line]})  # fmt: skip

    def answer(route):
        """And the connection is lost."""
        told.append(news)
        body = f"retry: 20\nevent: news\ndata: {news}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    shown.page.route("**/api/news", answer)
    shown.page.reload()
    shown.wait_until(lambda: len(told) > 3)

    assert 1 == shown.page.locator("#lines li").count()


def test_two_runs_stand_beside_each_other_each_as_its_journal_has_it(page, books):
    page.go("view=run&runs=a")
    page.page.get_by_label("beside").select_option("b")
    page.wait("a,b", lambda: page.address.get("runs"))
    at = books[0].moments(0.4)[0]
    for place in ("view=run&runs=a,b", f"view=run&runs=a,b&at={at!r}"):
        page.go(place)
        for run in (0, 1):
            agrees(page, books[run], run)


def test_curves_of_two_runs_lie_over_one_another_and_their_table_names_both(page, books):
    page.go("view=run&runs=a,b")
    page.wait(2, lambda: page.page.locator(".run-moment").count())
    page.wait_until(
        lambda: len({row[0] for row in page.table("time", "Time of each step")[1]}) == 2
    )
    head, rows = page.table("time", "Time of each step")
    for one, name in zip(books, sorted({row[0] for row in rows}), strict=True):
        steps = [int(row[head.index("step")]) for row in rows if row[0] == name]

        assert list(range(1, one.shape.steps + 1)) == steps
