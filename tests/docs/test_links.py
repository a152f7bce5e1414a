"""Every link of every page leads somewhere, down to the heading; outside ones are well formed."""

from urllib.parse import urlsplit

import pytest
from tests.docs.support.pages import ROOT, anchors, links, name, pages


def fault(page, link):
    """What is wrong with a link; None: nothing."""
    if ":" in link.partition("#")[0]:
        there = urlsplit(link)
        is_formed = there.scheme in ("https", "mailto") and (there.netloc or there.path)
        return None if is_formed else f"{link}: no address"
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT):
        return f"{link}: leads out of the repository"
    if not target.is_file():
        return f"{link}: no such file"
    if anchor and anchor not in anchors(target):
        return f"{link}: there are {sorted(anchors(target))}"
    return None


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_link_leads_somewhere(page):
    found = [fault(page, link) for link in links(page)]

    assert [] == [one for one in found if one is not None]


@pytest.mark.parametrize(
    "text",
    [
        "[a](none.md)",
        "[a](.)",
        "[a](page.md#no-such)",
        "[a](#no-such)",
        "[a](http://plain.example)",
        "[a](../../../../../../etc/passwd)",
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(text, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nSee {text}.\n")

    assert [True] == [fault(page, link) is not None for link in links(page)]


def test_links_in_code_are_examples(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`[a](none.md)`\n\n```text\n[a](none.md)\n```\n")

    assert [] == links(page)
