"""Calls as they can be read, token by token."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gyre.observability.inspect import call_view
from gyre.observability.inspect.call_view import Vocabulary, call_data, pieces
from gyre.observability.inspect.tree_layout import SelectionRule
from gyre.trajectory.loading import load
from gyre.types.errors import ConfigError
from gyre.types.ids import EngineName
from gyre.types.sampling import Span

RULE = SelectionRule(seed=0, max_trajectories=5)


def decoded(ids):
    """Ids below 256 are bytes, others are words."""
    data = b"".join(bytes([one]) if one < 256 else b"<%d>" % one for one in ids)
    return data.decode(errors="replace")


VOCABULARY = Vocabulary(decode=decoded, special=frozenset({9}))


def told(history, tmp_path, call, vocabulary=VOCABULARY):
    found = call_data(load(history.write(tmp_path)), call, RULE, vocabulary=vocabulary)
    return json.loads(json.dumps(found))


def test_tokens_say_where_they_came_from(make_story, tmp_path):
    history = make_story()
    first = history.call(1, 0, {"system": [9, 83, 9], "user": [85]}, [79, 75])
    history.call(2, first, {"tool": [84, 84]}, [33])

    one, two = told(history, tmp_path / "a", 1), told(history, tmp_path / "b", 2)
    runs = [
        [(run["source"], run["num_tokens"], run["text"]) for run in message["runs"]]
        for message in one["messages"]
    ]

    assert [
        [("template", 1, "\t"), ("harness", 1, "S"), ("template", 1, "\t")],
        [("harness", 1, "U")],
    ] == runs
    assert [("template", 1, "\t")] == [
        (run["source"], run["num_tokens"], run["text"]) for run in one["reply"]["prompt"]
    ]
    assert (["O", "K"], [79, 75]) == (one["reply"]["pieces"], one["reply"]["ids"])
    assert ["tool"] == [run["source"] for run in two["messages"][0]["runs"]]
    assert (7, 2) == (two["shared_tokens"], two["messages"][0]["num_tokens"])


def test_targets_have_the_draw_that_admitted_them(errand, tmp_path):
    cut = told(errand, tmp_path / "a", 9)["reply"]
    whole = told(errand, tmp_path / "b", 8)["reply"]

    assert (2, 15, 20) == (cut["draw"], cut["num_targets"], cut["num_tokens"])
    assert (3, 25, None) == (whole["draw"], whole["num_targets"], whole["why_not"])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (3, "nobody is known to have received it"),
        (11, "a side call is never trained"),
        (1, None),
    ],
)
def test_what_is_no_target_says_why(errand, tmp_path, call, expected):
    assert expected == told(errand, tmp_path, call)["reply"]["why_not"]


def test_what_no_engine_gave_a_logprob_for_says_so(make_story, tmp_path):
    history = make_story()
    history.call(1, 0, {"system": 1}, 3, logprobs=False)
    reply = told(history, tmp_path, 1)["reply"]

    assert (None, "its engine gave no log-probabilities") == (reply["logprobs"], reply["why_not"])


def test_logprobs_and_versions_are_as_recorded(make_story, tmp_path):
    history = make_story()
    spans = (
        Span(engine=EngineName("one"), version=3, tokens=1),
        Span(engine=EngineName("two"), version=4, tokens=2),
    )
    history.call(1, 0, {"system": 1}, [1000, 1001, 1002], spans=spans)
    found = told(history, tmp_path, 1)

    assert [-((one % 7) + 1) / 8 for one in (1000, 1001, 1002)] == found["reply"]["logprobs"]
    assert [("one", 3, 1), ("two", 4, 2)] == [
        (span["engine"], span["version"], span["tokens"]) for span in found["spans"]
    ]


def test_without_a_tokenizer_only_the_reply_has_text(make_story, tmp_path):
    history = make_story()
    history.call(1, 0, {"system": 3}, 2, text="Done.")
    found = told(history, tmp_path, 1, vocabulary=None)

    assert [{"source": "harness", "num_tokens": 3, "text": None}] == found["messages"][0]["runs"]
    assert ("Done.", None, False) == (
        found["reply"]["message"]["text"],
        found["reply"]["pieces"],
        found["has_text"],
    )


def test_of_a_long_message_beginning_and_end_are_told(make_story, tmp_path, monkeypatch):
    monkeypatch.setattr(call_view, "MOST_TOKENS", 4)
    history = make_story()
    history.call(1, 0, {"system": [65, 66, 67, 68, 69, 70, 71]}, [80, 81, 82, 83, 84])
    found = told(history, tmp_path, 1)

    assert (["AB", "FG"], 3) == (
        [run["text"] for run in found["messages"][0]["runs"]],
        found["messages"][0]["left_out"],
    )
    assert (["P", "Q", "R", "S"], 1) == (found["reply"]["pieces"], found["reply"]["left_out"])


def test_a_call_that_is_not_there_is_named(errand, tmp_path):
    with pytest.raises(ConfigError, match="x: no call 12 that ended; it has 11"):
        told(errand, tmp_path, 12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab", ["a", "b"]),
        ("aé", ["a", "", "é"]),
        ("😀!", ["", "", "", "😀", "!"]),
        ("", []),
    ],
)
def test_a_character_of_several_tokens_belongs_to_the_last(text, expected):
    assert expected == pieces(list(text.encode()), decoded)


def test_bytes_that_never_become_a_character_are_given_up():
    found = pieces([0x80] * 100, decoded)

    assert 100 == len(found)
    assert "\ufffd" * 100 == "".join(found)
    assert 8 > max(map(len, "".join(str(int(not one)) for one in found).split("0")))


def test_a_logprob_that_is_no_number_is_absent(make_story, tmp_path):
    history = make_story()
    history.call(1, 0, {"system": 1}, [1000, 1001])
    closed = history.records[2]
    history.records[2] = replace(closed, logprobs=np.array([-np.inf, -1], np.float32).tobytes())

    assert [None, -1.0] == told(history, tmp_path, 1)["reply"]["logprobs"]


def test_pieces_are_the_whole_text_even_where_it_ends_inside_a_character():
    ids = list("né".encode()[:-1])

    assert ["n", "\ufffd"] == pieces(ids, decoded)
