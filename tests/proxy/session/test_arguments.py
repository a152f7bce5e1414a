"""What harnesses are known to make of arguments, and what they are not."""

import json

import pytest

from gyre.proxy.session.arguments import is_same_call
from gyre.types.conversation import Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"timeout": {"type": "integer", "default": 120}}}
FREE = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
TOOLS = [
    Tool(name="Bash", description="", parameters=json.dumps(SCHEMA)),
    Tool(name="patch", description="", parameters=json.dumps(FREE)),
]


def is_same(sampled, echo, *, name="Write", echoed_name=None):
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (sampled, echo)]
    before = ToolCall(id="c", name=name, arguments=texts[0])
    after = ToolCall(id="c", name=echoed_name or name, arguments=texts[1])
    return is_same_call(before, after, TOOLS)


@pytest.mark.parametrize(
    ("sampled", "echo"),
    [
        ({"a": 1000.0}, {"a": 1000}),
        ({"a": "5000"}, {"a": 5000}),
        ({"a": "true", "b": "null"}, {"a": True, "b": None}),
        ({"a": False, "b": None}, {"a": "False", "b": "None"}),
        ({"a": '{"b": [1]}'}, {"a": {"b": [1.0]}}),
        ('{"a": 12345678901234567890}', '{"a": 12345678901234567000}'),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
        ({"content": "bbb   \nccc  "}, {"content": "bbb\nccc"}),
        ({"content": "a\r\nb\n"}, {"content": "a\nb"}),
        ({"edits": [{"old": "a"}]}, {"edits": [{"old": "a", "replace_all": False}]}),
        ({"a": None}, {}),
        ("", {}),
        ("{a: 1", {"__unparsedToolInput": {"raw": "{a: 1", "len": 5}}),
        ("{a: 1" * 900, {"__unparsedToolInput": {"raw": ("{a: 1" * 900)[:2048], "len": 4500}}),
        ("{a: 1", '"{a: 1"'),
    ],
)
def test_what_only_looks_otherwise_is_the_same(sampled, echo):
    """T12, T13, T18."""
    assert is_same(sampled, echo)


@pytest.mark.parametrize(
    ("sampled", "echo"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": None}),
        ({"a": "x"}, {}),
        ({}, {"a": "x"}),
        ({"a": "x"}, {"a": "[elided]"}),
        ({"a": "x" * 3000}, {"a": "x" * 10}),
        ({"a": "  x"}, {"a": "x"}),
        ({"a": "5000"}, {"a": "5000.0"}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 10**400}, {"a": 1}),
        ({"a": 10**400}, {"a": 10**401}),
        ({"a": 1}, "[elided]"),
        ("{a: 1", {}),
        ("{a: 1", {"__unparsedToolInput": {"raw": ""}}),
        ("[" * 5000 + "]" * 5000, "[" * 4999 + "]" * 4999),
        ({"input": "free", "more": 1}, {"input": "free"}),
    ],
)
def test_a_real_edit_is_one(sampled, echo):
    assert not is_same(sampled, echo)


def test_defaults_of_the_schema_may_be_added_and_dropped():
    bare, filled = {"command": "ls"}, {"command": "ls", "timeout": 120}

    assert is_same(bare, filled, name="Bash")
    assert is_same(filled, bare, name="Bash")
    assert not is_same(bare, filled | {"timeout": 60}, name="Bash")
    assert not is_same(filled | {"timeout": 60}, bare, name="Bash")
    assert not is_same(bare, filled, name="Other")


@pytest.mark.parametrize(
    ("sampled", "echo", "same"),
    [
        ("cd /app && make", "make", True),
        ("set -e; cd /my app && make", "set -e; make", True),
        ("cd a && cd b && make", "cd a && make", True),
        ("cd a && cd b && make", "cd b && make", True),
        ("cd a && cd a && cd ab", "cd a && cd ab", True),
        ("cd a && cd a && cd ab", "cd ab", False),
        ("cd a\nb && make", "make", False),
        ("find . -exec ls {} \\\\;", "find . -exec ls {} \\;", True),
        ("cd /app && make", "ls", False),
        ("cd /app && make && rm x", "make", False),
    ],
)
def test_claude_code_takes_a_change_of_folder_out_of_commands(sampled, echo, same):
    timeout = {"timeout": 5}

    assert same is is_same({"command": sampled} | timeout, {"command": echo} | timeout, name="Bash")
    assert not is_same({"command": sampled} | timeout, {"command": echo}, name="Bash")
    assert not is_same({"command": sampled}, {"command": echo}, name="Other")


def test_a_tool_that_takes_free_text_gets_one_argument():
    """All that was sampled where none has the name, and else no other."""
    assert is_same({"input": "free", "more": 1}, {"input": "free"}, name="patch")
    assert is_same('{"text": "x"}', {"input": '{"text": "x"}'}, name="patch")
    assert not is_same({"input": "free"}, {"input": "other"}, name="patch")


def test_opencode_renames_a_call_that_it_cannot_make():
    error = {"tool": "nosuch", "error": "no such tool"}

    assert is_same({"a": 1}, error, name="nosuch", echoed_name="invalid")
    assert not is_same({"a": 1}, error, name="invalid", echoed_name="invalid")
    assert not is_same({"a": 1}, error, name="nosuch", echoed_name="other")
