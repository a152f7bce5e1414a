import json

from hypothesis import given
from hypothesis import strategies as st

from gyre.renderers.tokenizer import (
    KEEP,
    MARK,
    SpecialTokenMatcher,
    encodable,
    is_marked,
    unescape,
    unmark,
)

SPELLINGS = ["<|end|>", "<a>", "a>b", "<", "[gM]", "<|end|>x"]
PIECES = [*SPELLINGS, "<|", "end|>", "a", ">", "\\", "ufdd0", "\\ufdd0", "\\ufdd1", MARK, KEEP]
texts = st.lists(st.sampled_from([*PIECES, "\ud800", "\x00", "é", " "])).map("".join)


@given(texts)
def test_marked_text_spells_nothing_and_comes_back(text):
    marks = SpecialTokenMatcher(SPELLINGS)
    marked = marks.mark(text)

    assert [] == list(marks.unmarked(marked))
    assert encodable(text) == unmark(unescape(marked))


@given(texts)
def test_marks_survive_being_written_as_json_escapes(text):
    marks = SpecialTokenMatcher(SPELLINGS)
    written = unescape(json.dumps({"key": marks.mark(text)}))

    assert [] == list(marks.unmarked(written))
    assert {"key": encodable(text)} == json.loads(unmark(written))


def test_overlapping_spellings_are_all_marked():
    marks = SpecialTokenMatcher(["ab", "bc"])

    assert f"a{MARK}b{MARK}c" == marks.mark("abc")


def test_a_template_s_own_spellings_are_found_longest_first():
    found = [match[0] for match in SpecialTokenMatcher(SPELLINGS).unmarked("x<|end|>x<|end|>[gM]")]

    assert ["<|end|>x", "<|end|>", "[gM]"] == found


def test_a_word_that_brackets_would_complete_is_kept_from_it():
    marks = SpecialTokenMatcher(["<think>"])

    assert [] == list(marks.unmarked("<" + marks.guard("think") + ">"))
    assert "<think>" == unmark("<" + marks.guard("think") + ">")
    assert "path" == marks.guard("path")


def test_ordinary_text_is_left_alone():
    assert "a plain é text" == SpecialTokenMatcher(SPELLINGS[:2]).mark("a plain é text")
    assert not is_marked("a plain é text")


def test_no_spellings_mean_no_marks():
    assert "<|end|>" == SpecialTokenMatcher([]).mark("<|end|>")
    assert [] == list(SpecialTokenMatcher([]).unmarked("<|end|>"))
