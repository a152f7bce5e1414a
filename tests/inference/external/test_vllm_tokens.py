"""vLLM's stream of tokens: versions are told at the end, and nothing is said before it is known."""

import json

import pytest

from gyre.inference.external.vllm import VllmStreamParser
from gyre.types.errors import EngineError


def event(ids=(), *, finish=None, spans=None, echo=None, logprobs=None):
    content = [
        {"token_id": one, "logprob": -0.5, "rank": 1, "top_logprobs": []}
        for one in (ids if logprobs is None else logprobs)
    ]
    choice = {
        "index": 0,
        "token_ids": list(ids),
        "logprobs": {"content": content},
        "finish_reason": finish,
        "weight_versions": None
        if spans is None
        else [{"version": str(version), "start": a, "end": b} for version, a, b in spans],
    }
    told = {"request_id": "x", "choices": [choice]}
    return json.dumps(told if echo is None else told | {"prompt_token_ids": echo}).encode()


def said(reading, *events):
    """Ids and versions of each chunk; an event is bytes, or bytes with the version of its time."""
    chunks = []
    for data, version in events:
        chunks += reading.feed(data, version)
    chunks += reading.last()
    return [(one.ids, one.version, one.finish) for one in chunks]


def reading():
    return VllmStreamParser("v", prompt_tokens=2)


def test_tokens_of_a_call_without_a_load_have_their_version_at_once():
    chunks = list(reading().feed(event([7, 8], echo=[1, 2]), 3))

    assert [([7, 8], [-0.5, -0.5], 3, [1, 2])] == [
        (one.ids, one.logprobs, one.version, one.prompt_ids) for one in chunks
    ]


def test_what_comes_after_a_load_waits_for_the_end_which_tells_versions():
    found = said(
        reading(),
        (event([7, 8]), 3),
        (event([9, 10]), None),
        (event([11], finish="length", spans=[(3, 0, 3), (4, 3, 5)]), None),
    )

    assert [
        ([7, 8], 3, None),
        ([], None, None),
        ([9], 3, None),
        ([10, 11], 4, None),
        ([], None, "length"),
    ] == found


def test_an_abort_tells_versions_too():
    found = said(
        reading(),
        (event([7]), None),
        (event(finish="abort", spans=[(4, 0, 1)]), None),
    )

    assert [([], None, None), ([7], 4, None), ([], None, "abort")] == found


def test_an_end_before_any_token_has_no_versions():
    assert [([], None, "abort")] == said(reading(), (event(finish="abort"), 3))


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([(event([7]), 3), (event(finish="stop", spans=[(4, 0, 1)]), 3)], "another version"),
        ([(event([7, 8]), 3), (event(finish="stop", spans=[(3, 0, 1)]), 3)], "versions of 1 of 2"),
        ([(event([7]), 3), (event(finish="stop", spans=[(3, 0, 10**15)]), 3)], "versions of 10+ "),
        ([(event([7], echo=[1, 2**31]), 3)], "an echoed id"),
        ([(b'{"x": ' + b"[" * 10**5, 3)], "nested too deeply"),
        ([(event([7], logprobs=[8]), 3)], "not of its ids"),
        ([(event([7], logprobs=[]), 3)], "not of its ids"),
        ([(event([7]), 3)], "without a finish reason"),
        ([(event(finish="tired", spans=[]), 3)], "finish reason 'tired'"),
        ([(b'{"choices": 3}', 3)], "not the JSON"),
        ([(b'{"error": {"message": "no room", "code": 503}}', 3)], "503: no room"),
    ],
)
def test_garbage_is_refused_and_may_be_asked_again(events, found):
    with pytest.raises(EngineError, match=found) as error:
        said(reading(), *events)

    assert error.value.retryable


def test_a_prompt_that_it_read_otherwise_is_refused_for_good():
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}
    with pytest.raises(EngineError, match="3 prompt tokens of the 2") as error:
        list(reading().feed(json.dumps(usage).encode(), 3))

    assert not error.value.retryable
