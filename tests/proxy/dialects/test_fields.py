"""Fields of foreign JSON: what is refused, mended, flattened and kept back."""

import json

import msgspec
import pytest

from gyre.proxy.dialects import base
from gyre.types.errors import RequestError


class Body(msgspec.Struct):
    text: str


BODY = msgspec.json.Decoder(Body)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("spelled", "text"),
    [
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\uD83D", "\ufffd"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"\\\\ud83d \ude00", "\\\\ud83d \ufffd"),
    ],
)
def test_half_characters_are_told_from_text_that_looks_like_them(spelled: str, text: str):
    assert text == base.decode_body(BODY, b'{"text":"%b"}' % spelled.encode()).text


def test_mending_makes_no_json_of_what_was_none():
    """A raw NUL is no JSON, and must not come out as the backslash that it stands in for."""
    with pytest.raises(RequestError, match="not JSON"):
        base.decode_body(BODY, b'{"text":"\\ud83d \0\0"}')


def test_a_body_of_nothing_but_half_characters_is_refused():
    with pytest.raises(RequestError, match="not JSON"):
        base.decode_body(BODY, b'{"text":"%b"}' % (rb"\ud83d " * 100_001))


def test_metadata_is_flattened_to_a_bounded_depth():
    nested = {"a": {"b": {"c": {"d": {"e": 1}}}}, "list": [1, {"x": 2}], "no": None, "yes": True}

    assert {"a.b.c.d": '{"e":1}', "list": '[1,{"x":2}]', "yes": "true"} == base.flatten(
        raw(nested), "metadata"
    )
    assert {} == base.flatten(raw([1]), "metadata")


def test_metadata_inside_a_string_is_an_object_or_nothing():
    assert {"a": "1"} == base.flatten_text('{"a": 1}', "user_id")
    assert base.flatten_text("[1]", "user_id") is None
    assert base.flatten_text("me", "user_id") is None


def test_the_last_user_is_who_has_the_role_and_not_the_name():
    messages = [
        raw({"role": "user", "content": "asked"}),
        raw({"role": "assistant", "name": "user", "content": "answered"}),
    ]

    assert ("asked",) == base.last_user(messages, "messages")
    assert () == base.last_user(messages[1:], "messages")


def test_a_user_message_that_cannot_be_read_is_named_by_its_place():
    with pytest.raises(RequestError, match=r"^input\[1\].content: expected"):
        base.last_user([raw({}), raw({"role": "user", "content": 3})], "input")


def test_keys_in_headers_are_kept_back_whatever_their_case():
    headers = {"Authorization": "k", "X-API-Key": "k", "COOKIE": "k", "Accept": "*/*"}

    assert {"accept": "*/*"} == base.harmless(headers)
