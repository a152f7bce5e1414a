"""A tree of 636 calls in a real browser: only what is looked at is made."""

import pytest
from tests.browser.long import NAME, NUM_CALLS, write
from tests.browser.serving import watching
from tests.browser.shown import calls_in

MOST_MADE = 80
"""Boxes in the page at once, of a window that shows some thirty."""


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    with watching(write(tmp_path_factory.mktemp("long") / "run")) as found:
        yield found


@pytest.fixture(scope="module")
def page(link, opened_once):
    return opened_once(link)


@pytest.fixture
def tree(page):
    page.go(f"view=tree&execution={NAME}")
    page.page.get_by_role("heading", name=NAME).wait_for()
    page.page.get_by_role("treeitem").first.wait_for()
    return page


def made(shown):
    return shown.page.get_by_role("treeitem").count()


def test_all_calls_stand_in_boxes_and_few_boxes_are_made(tree):
    rows = tree.boxes()

    assert NUM_CALLS == sum(len(calls_in(row["calls"])) for row in rows)
    assert 2 == sum(row["calls"] == "preface" for row in rows)
    assert {"main-summary", "sub-agent-summary"} <= {row["role"] for row in rows}
    assert 0 < made(tree) < MOST_MADE


def test_summaries_are_dashed(tree):
    styles = tree.page.locator(".box.summary").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).borderTopStyle)"
    )

    assert styles
    assert {"dashed"} == set(styles)


def test_keys_lead_through_it_and_what_is_reached_is_there(tree):
    def focused():
        return tree.page.evaluate("() => document.activeElement.dataset.box")

    tree.page.get_by_role("treeitem", selected=True).focus()
    reached = []
    for key in ("ArrowRight", "ArrowDown", "End", "Home", "ArrowRight"):
        before = tree.address.get("box")
        tree.page.keyboard.press(key)
        # The address follows a little later.
        tree.wait_until(lambda before=before: before != tree.address.get("box"))
        reached.append(int(tree.address["box"]))

        tree.wait(str(reached[-1]), focused)
        assert made(tree) < MOST_MADE
    assert 0 == reached[3]
    assert reached[0] == reached[4]


def test_calls_of_a_long_box_are_fetched_when_they_come_near(tree):
    rows = tree.boxes()
    longest = max(rows, key=lambda row: len(calls_in(row["calls"])))
    tree.go(f"view=tree&execution={NAME}&box={longest['box']}")
    numbers = calls_in(longest["calls"])
    tree.section(numbers[0])
    before = len([one for one in tree.asked if "/api/call" in one])
    tree.section(numbers[-1])

    assert before < len(numbers) / 2
    assert before < len([one for one in tree.asked if "/api/call" in one])


def test_a_draw_marks_its_path(tree):
    draws = tree.page.get_by_role("group", name="Trajectories that were drawn")
    draws.get_by_role("button").nth(1).click()
    tree.wait_until(lambda: tree.page.locator(".box.on-path").count() > 0)

    assert "true" == draws.get_by_role("button").nth(1).get_attribute("aria-pressed")
