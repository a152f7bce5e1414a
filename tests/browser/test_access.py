"""The page for who does not see it, and for who has no mouse."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from tests.browser.long import NAME, write
from tests.browser.serving import watching

VIEWS = {
    "a run": "view=run&runs=a",
    "two runs": "view=run&runs=a,b",
    "executions": "view=executions&runs=a",
    "a tree": f"view=tree&runs=a&execution={NAME}&box=1",
}
READY = {
    "a run": "[data-panel=water] canvas",
    "two runs": ".run-moment:nth-of-type(2) .tiles",
    "executions": ".executions table",
    "a tree": "[role=treeitem]",
}
MOST_TABS = 500
REACHED = "a[href], button, select, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    with watching(write(folder / "one", tool_tokens=20), write(folder / "two")) as found:
        yield found


@pytest.fixture(scope="module")
def page(link, opened_once):
    return opened_once(link)


def show(page, view):
    """The view with everything in it: panels come when somebody scrolls to them."""
    page.go(VIEWS[view])
    page.page.locator(READY[view]).first.wait_for()
    if view in ("a run", "two runs"):
        for name in page.page.locator("[data-panel]").evaluate_all(
            "all => all.map((one) => one.dataset.panel)"
        ):
            page.panel(name)
        page.table("staleness", "Staleness of trained groups")
    page.settle()


def violations(page, **options):
    found = Axe().run(page.page, options=options).response["violations"]
    return [
        (one["id"], node["html"][:200], node["failureSummary"])
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_wrong_nor_too_faint_in_the_dark(page, view):
    show(page, view)
    by_day = violations(page)
    page.page.emulate_media(color_scheme="dark")
    page.settle()
    by_night = violations(page, runOnly=["color-contrast"])
    page.page.emulate_media(color_scheme="light")

    assert ([], []) == (by_day, by_night)


@pytest.mark.parametrize("view", VIEWS)
def test_everything_is_reached_by_tab_in_the_order_of_the_page_with_focus_in_sight(
    opened, link, view
):
    """On a page of its own, whose figures are not made anew for another number of runs."""
    page = opened(link, VIEWS[view])
    show(page, view)
    count = page.page.evaluate(MARK, REACHED)
    seen = []
    page.page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    for _ in range(MOST_TABS):
        page.page.keyboard.press("Tab")
        place, is_visible, said = page.page.evaluate(FOCUSED)
        if said is None:
            break
        assert is_visible, said
        # What was fetched meanwhile, as calls that came near, has no number.
        seen += [] if place is None else [place]

    assert count > 10
    assert list(range(count)) == seen


MARK = """selector => {
    const seen = [...document.querySelectorAll(selector)].filter((one) =>
        one.checkVisibility() && !one.disabled && one.tabIndex >= 0);
    seen.forEach((one, at) => { one.dataset.place = at; });
    return seen.length;
}"""
"""Numbers what can be reached, in the order of the document."""
FOCUSED = """() => {
    const one = document.activeElement;
    if (one === document.body) return [null, true, null];
    const style = getComputedStyle(one);
    const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    const isSeen = isOutlined || style.boxShadow !== "none";
    const place = one.dataset.place === undefined ? null : Number(one.dataset.place);
    return [place, isSeen, one.outerHTML.slice(0, 200)];
}"""
"""Which of them has the focus, and whether that can be seen."""
