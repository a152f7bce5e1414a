"""Events come whole, however the network cuts their bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.net import sse
from gyre.net.sse import EventTooLong, SseParser

STREAM = (
    b'data: {"a": 1}\r\n\r\n: a comment\n\ndata:two\ndata: lines\nid: 7\n\n\n\ndata: [DONE]\n\n'
)
DATA = [b'{"a": 1}', b"two\nlines", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts):
    events = SseParser()
    bounds = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(bounds)]

    assert DATA == [event for piece in pieces for event in events.feed(piece)]


def test_an_event_that_is_not_ended_is_not_given():
    events = SseParser()

    assert [] == events.feed(b"data: half\n")
    assert [b"half"] == events.feed(b"\n")


def test_an_endless_event_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "MOST_BYTES", 100)
    events = SseParser()

    with pytest.raises(EventTooLong, match="more than 100 bytes"):
        events.feed(b"data: " + b"x" * 100)


@pytest.mark.parametrize("line", [b"data: x\n", b"data:\n"])
def test_an_event_of_lines_without_end_is_refused(monkeypatch, line):
    monkeypatch.setattr(sse, "MOST_BYTES", 100)
    events = SseParser()

    with pytest.raises(EventTooLong, match="more than 100 bytes"):
        list(map(events.feed, [line] * 30))


def test_lines_of_events_that_ended_are_not_counted(monkeypatch):
    monkeypatch.setattr(sse, "MOST_BYTES", 100)
    events = SseParser()

    assert [b"x"] * 30 == [one for _ in range(30) for one in events.feed(b"data: x\n\n")]
