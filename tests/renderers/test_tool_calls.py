import json

import pytest

from gyre.renderers.tool_calls import as_json, read_call, write_call

DEEP = "[" * 5000 + "]" * 5000
LONG = "1" + "0" * 5000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "a", "arguments": {"b":1.0,  "c": "\\u00e9"}}', '{"b":1.0,  "c": "\\u00e9"}'),
        ('\n{"arguments": {}, "name": "a"}\n', "{}"),
        ('{"name": "a"}', "{}"),
        ('{"name": "a", "arguments": null}', "{}"),
        ('{"name": "a", "parameters": {"b": 1}}', '{"b": 1}'),
        ('{"name": "a", "arguments": "{\\"b\\": 1}"}', '{"b": 1}'),
        ('{"name": "a", "arguments": {"b": 1e400}}', '{"b": 1e400}'),
        (f'{{"name": "a", "arguments": {{"b": {LONG}}}}}', f'{{"b": {LONG}}}'),
        ('{"name": "a", "arguments": {"b": 1, "b": 2}}', '{"b": 1, "b": 2}'),
    ],
)
def test_arguments_are_read_as_they_were_written(text, expected):
    assert ("a", expected) == read_call(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "text",
        '{"name": "a", "arguments": {}',
        '{"name": "a", "arguments": {}} more',
        '{"name": "a", "arguments": {"b": NaN}}',
        '{"name": "a", "arguments": [1]}',
        '{"name": "a", "arguments": 5}',
        '{"name": "a", "arguments": "text"}',
        '{"name": 5, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": null}',
        '{"name": "a" "arguments": {}}',
        '{1: "a"}',
        '["name", "a"]',
        f'{{"name": "a", "arguments": {{"b": {DEEP}}}}}',
    ],
)
def test_what_is_no_call_reads_as_none(text):
    """T18: without raising."""
    assert None is read_call(text)


@pytest.mark.parametrize("arguments", ['{"a": 1}', "{}", '{"a": {"b": [true, null]}}'])
def test_a_written_call_reads_back(arguments):
    assert ('say "it"', arguments) == read_call(write_call('say "it"', arguments))


@pytest.mark.parametrize("arguments", ["not json", "{", DEEP, '{"a": NaN}'])
def test_arguments_that_are_not_json_are_written_as_a_string(arguments):
    assert {"name": "a", "arguments": arguments} == json.loads(write_call("a", arguments))


def test_blank_arguments_are_an_empty_object():
    """T12: nothing, an empty string and an empty object are one."""
    assert '{"name": "a", "arguments": {}}' == write_call("a", " ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, None, True]}, '{"a": [1, null, true]}'),
        ({"a": "é"}, '{"a": "é"}'),
        ({"a": "\ud800é"}, '{"a": "\\ud800\\u00e9"}'),
        ({"a": float("nan")}, None),
        ([1], None),
        ("{}", None),
        (None, None),
    ],
)
def test_only_objects_that_json_can_say_have_a_text(value, expected):
    assert expected == as_json(value)
