"""Pages are written so that code hosts and the site read them alike."""

import re

import pytest
from tests.docs.support.pages import name, pages, prose

ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def faults(text):
    """Lines that one reader of Markdown takes for something else than the other."""
    before, in_list = "", False
    for line in text.splitlines():
        begins = ITEM.match(line) is not None
        if begins and before and not in_list:
            yield f"no empty line before the list: {line}"
        if line.startswith("|") and before and not before.startswith("|"):
            yield f"no empty line before the table: {line}"
        if re.match(r" {1,3}(?:[-*|] |\d+\. |```)", line):
            yield f"something in a list, indented by less than four: {line}"
        in_list = begins or (in_list and line.startswith(" "))
        before = line


@pytest.mark.parametrize("page", pages(), ids=name)
def test_lists_and_tables_are_seen_by_every_reader(page):
    assert [] == list(faults(prose(page)))


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_page_begins_with_its_name_and_a_sentence(page):
    heading, empty, sentence, *_ = prose(page).splitlines()

    assert heading.startswith("# ")
    assert "" == empty
    assert re.match(r"[A-Z`0-9\[*]", sentence), sentence


@pytest.mark.parametrize(
    "text", ["Some:\n- one\n", "Some:\n1. one\n", "Some:\n| a | b |\n", "- one\n  - two\n"]
)
def test_what_readers_see_differently_is_noticed(text):
    assert list(faults(text))
