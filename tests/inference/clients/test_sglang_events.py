"""SGLang's events, cumulative and incremental, with and without version spans."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.inference.clients.sglang import READ_EVERY_S, SglangStreamParser
from gyre.types.errors import EngineError

IDS = list(range(100, 140))
LOGPROBS = [-number / 16 for number in range(40)]
STOP = {"type": "stop", "matched": 5}
LATER = 10 * READ_EVERY_S


def event(end, *, start=0, finish=None, version="3", total=None, **changes):
    """The tokens from `start` to `end` as one event, the whole output being `total` long."""
    triples = [
        [value, token, None]
        for value, token in zip(LOGPROBS[start:end], IDS[start:end], strict=True)
    ]
    meta = {
        "id": "r",
        "finish_reason": finish,
        "prompt_tokens": 5,
        "weight_version": version,
        "completion_tokens": end if total is None else total,
        "output_token_logprobs": triples,
    }
    meta |= changes.pop("meta", {})
    data = {"text": "x", "output_ids": IDS[start:end], "meta_info": meta} | changes
    return json.dumps(data, separators=(",", ":")).encode()


def read(reading, *events, every_s=LATER):
    return [
        chunk
        for number, one in enumerate(events)
        for chunk in reading.feed(one, now=1000 + number * every_s)
    ]


def joined(chunks):
    return [token for chunk in chunks for token in chunk.ids]


def test_cumulative_events_become_the_new_tokens():
    chunks = read(
        SglangStreamParser("e", prompt_tokens=5), event(3), event(7), event(9, finish=STOP)
    )

    assert [IDS[:3], IDS[3:7], IDS[7:9]] == [chunk.ids for chunk in chunks]
    assert [LOGPROBS[:3], LOGPROBS[3:7], LOGPROBS[7:9]] == [chunk.logprobs for chunk in chunks]
    assert [None, None, "stop"] == [chunk.finish for chunk in chunks]
    assert {3} == {chunk.version for chunk in chunks}


def test_incremental_events_become_the_new_tokens():
    chunks = read(
        SglangStreamParser("e", prompt_tokens=5),
        event(3),
        event(7, start=3),
        event(9, start=7, finish={"type": "length"}),
    )

    assert [IDS[:3], IDS[3:7], IDS[7:9]] == [chunk.ids for chunk in chunks]
    assert "length" == chunks[-1].finish


def test_delta_ids_with_cumulative_log_probabilities_are_aligned():
    """Versions with --stream-output send the two in different ways."""
    whole = json.loads(event(7))["meta_info"]["output_token_logprobs"]
    chunks = read(
        SglangStreamParser("e", prompt_tokens=5),
        event(3),
        event(7, start=3, meta={"output_token_logprobs": whole}),
    )

    assert LOGPROBS[3:7] == chunks[1].logprobs


def test_repeating_events_wait_unread_and_show_life():
    reading = SglangStreamParser("e", prompt_tokens=5)
    chunks = read(
        reading,
        event(2),
        event(4),
        b'"finish_reason":null "weight_version":"3"',
        event(8),
        every_s=0.0,
    )

    assert [2, 2, 0, 0] == [len(chunk.ids) for chunk in chunks]
    assert IDS[4:8] == joined(reading.flush())
    assert [] == list(reading.flush())


@given(
    ends=st.lists(st.integers(1, 39), unique=True).map(sorted),
    incremental=st.booleans(),
    every_s=st.sampled_from([0.0, READ_EVERY_S / 2, LATER]),
    flip=st.integers(0, 40),
    cut=st.booleans(),
)
def test_whatever_waits_no_token_is_lost_or_doubled(ends, incremental, every_s, flip, cut):
    """T07: and each has the version that was said with it."""
    starts = [0, *ends]
    bounds = list(zip(starts, [*ends, 40], strict=True))
    events = [
        event(
            end,
            start=start if incremental else 0,
            version="4" if start >= flip else "3",
            finish=STOP if end == 40 and not cut else None,
        )
        for start, end in bounds
    ]
    reading = SglangStreamParser("e", prompt_tokens=5)
    chunks = [*read(reading, *events, every_s=every_s), *reading.flush()]

    assert IDS == joined(chunks)
    assert LOGPROBS == [value for chunk in chunks for value in chunk.logprobs]
    assert [4 if start >= flip else 3 for start, end in bounds for _ in range(start, end)] == [
        chunk.version for chunk in chunks for _ in chunk.ids
    ]


def test_version_spans_cut_an_event_where_the_weights_changed():
    spans = [{"version": "3", "start": 0, "end": 5}, {"version": "4", "start": 5, "end": 9}]
    chunks = read(
        SglangStreamParser("e", prompt_tokens=5),
        event(2),
        event(9, version="4", meta={"weight_versions": spans}),
    )

    assert [(2, 3), (3, 3), (4, 4)] == [(len(chunk.ids), chunk.version) for chunk in chunks]
    assert IDS[:9] == joined(chunks)


def test_version_spans_that_leave_tokens_out_say_nothing():
    spans = [{"version": "3", "start": 0, "end": 5}]
    (chunk,) = read(
        SglangStreamParser("e", prompt_tokens=5), event(9, meta={"weight_versions": spans})
    )

    assert (IDS[:9], None) == (chunk.ids, chunk.version)


def test_a_version_that_is_no_number_is_absent():
    (chunk,) = read(SglangStreamParser("e", prompt_tokens=5), event(3, version="default"))

    assert chunk.version is None


@pytest.mark.parametrize(
    "last",
    [
        {"output_ids": [IDS[6]], "meta": {"completion_tokens": 7}},
        {"output_ids": IDS[:7], "meta": {"completion_tokens": 7}},
        {"output_ids": None, "meta": {"completion_tokens": None}},
        {"output_ids": [], "meta": {"completion_tokens": 0}},
    ],
)
def test_an_abort_adds_no_token_twice(last):
    """Versions differ in what an abort repeats: the last id, everything, or nothing."""
    last = event(7, finish={"type": "abort", "message": "Abort"}, **last)
    chunks = read(SglangStreamParser("e", prompt_tokens=5), event(3), event(7), last)

    assert IDS[:7] == joined(chunks)
    assert "abort" == chunks[-1].finish


def test_an_abort_in_the_queue_has_no_tokens():
    said = b'{"text":"","meta_info":{"id":"r","finish_reason":{"type":"abort","message":"x"}}}'
    (chunk,) = read(SglangStreamParser("e", prompt_tokens=5), said)

    assert ([], "abort") == (chunk.ids, chunk.finish)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (503, True), (500, True)])
def test_an_abort_with_a_status_is_a_refusal(status, retryable):
    said = event(0, finish={"type": "abort", "message": "too long", "status_code": status})

    with pytest.raises(EngineError, match="too long") as error:
        read(SglangStreamParser("e", prompt_tokens=5), said)

    assert retryable == error.value.retryable


def test_an_error_event_is_a_refusal():
    said = b'{"error":{"message":"input is too long","type":"x","code":400,"retryable":false}}'

    with pytest.raises(EngineError, match="400: input is too long") as error:
        read(SglangStreamParser("e", prompt_tokens=5), said)

    assert not error.value.retryable


def test_another_number_of_prompt_tokens_is_never_accepted():
    """T01: where the echo is too long to be sent, its length is compared."""
    with pytest.raises(EngineError, match="read 5 prompt tokens of the 6") as error:
        read(SglangStreamParser("e", prompt_tokens=6), event(3))

    assert not error.value.retryable


@pytest.mark.parametrize(
    "changes",
    [
        {"meta": {"output_token_logprobs": [[-1.0, 100, None]]}},
        {"meta": {"output_token_logprobs": []}},
        {"meta": {"output_token_logprobs": [[-1.0, 9, None]] * 3}},
        {"meta": {"output_token_logprobs": [[None, 100, None], [-1, 101, None], [-1, 102, None]]}},
        {"meta": {"output_token_logprobs": [[-1e400, t, None] for t in IDS[:3]]}},
        {"meta": {"completion_tokens": 5}},
        {"meta": {"completion_tokens": None}},
        {"meta": {"finish_reason": {"type": "tired"}}},
        {"output_ids": None},
        {"output_ids": ["a", "b", "c"]},
        {"output_ids": [-1, 101, 102], "meta": {"output_token_logprobs": None}},
        {"output_ids": [2**31, 101, 102], "meta": {"output_token_logprobs": None}},
        {"meta_info": None},
        {"prompt_token_ids": [2**31]},
        {"prompt_token_ids": [-1]},
    ],
)
def test_garbage_is_refused_whole(changes):
    """FAULTS 6, T27."""
    reading = SglangStreamParser("e", prompt_tokens=5)
    with pytest.raises(EngineError) as error:
        read(reading, event(3, **changes))

    assert error.value.retryable
    assert IDS[:3] == joined(read(reading, event(3)))


@given(st.binary(max_size=60))
def test_bytes_at_random_are_refused(data):
    """FAULTS 6."""
    with pytest.raises(EngineError):
        read(SglangStreamParser("e", prompt_tokens=5), data)


def test_garbage_after_events_that_wait_does_not_lose_them():
    reading = SglangStreamParser("e", prompt_tokens=5)
    read(reading, event(2), event(4), event(8), every_s=0.0)
    kept = []
    with pytest.raises(EngineError):
        kept.extend(reading.feed(b"{broken", now=1000))
    kept.extend(reading.flush())

    assert IDS[4:8] == joined(kept)
