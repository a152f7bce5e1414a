"""The site of the documentation, opened from the disk: its search finds, and nobody is asked."""

from tests.browser.shown import PATIENCE_MS
from tests.docs.support.site import build

WINDOW = {"width": 1280, "height": 900}


def test_the_search_works_from_the_disk(browser, tmp_path):
    site = build(tmp_path)
    page = browser.new_page(viewport=WINDOW)
    page.set_default_timeout(PATIENCE_MS)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((site / "reference" / "cli.html").as_uri())
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("waterlevel")
    found = page.get_by_role("heading", name="The contract")
    found.first.wait_for()
    page.close()

    assert [] == [one for one in asked if not one.startswith(site.as_uri())]
    assert [] == complaints
