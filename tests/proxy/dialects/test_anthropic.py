"""Anthropic Messages, read and written."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gyre.proxy.dialects.anthropic import AnthropicMessages
from gyre.types.conversation import Message, Reply, Tool, ToolCall, Usage
from gyre.types.errors import (
    ContextOverflow,
    NotFound,
    Overloaded,
    RequestError,
    TooLarge,
    Unauthorized,
    Unavailable,
)

DIALECT = AnthropicMessages()
WIRE = DIALECT.split(b'{"model":"policy","messages":[]}')


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def read(value: object) -> tuple[Message, ...]:
    return DIALECT.read(raw(value))


def split(**fields: object) -> Any:
    return DIALECT.split(json.dumps({"model": "policy", "messages": []} | fields).encode())


def reply(**said: Any) -> Reply:
    finish = said.pop("finish", "tool_calls" if said.get("calls") else "stop")
    return Reply(
        message=Message(role="assistant", **said),
        finish=finish,
        usage=Usage(prompt_tokens=100, output_tokens=7, cached_tokens=60),
        model="policy",
        id="c1",
    )


CALL = ToolCall(id="toolu_1", name="Bash", arguments='{"command": "ls"}')
OTHER = ToolCall(id="toolu_2", name="Read", arguments='{"path":"a","n":1.0}')


# Requests


def test_a_request_is_split_and_its_bulk_stays_bytes():
    body = (
        b'{"model":"policy","messages":[ {"role": "user" , "content":"hi"} ],"stream":true,'
        b'"system":[{"type":"text","text":"s"}],"tools":[{"name":"Bash"}],"max_tokens":32000,'
        b'"temperature":1,"top_k":5,"stop_sequences":["END"],"thinking":{"type": "enabled"},'
        b'"context_management":{"edits":[]},"output_config":{"effort":"high"},"betas":["x"]}'
    )

    wire = DIALECT.split(body)

    assert "policy" == wire.model
    assert wire.stream is True
    assert [b'{"role": "user" , "content":"hi"}'] == [bytes(one) for one in wire.messages]
    assert wire.system is not None
    assert b'[{"type":"text","text":"s"}]' == bytes(wire.system)
    assert wire.tools is not None
    assert b'[{"name":"Bash"}]' == bytes(wire.tools)
    assert 32000 == wire.max_tokens
    assert ("END",) == wire.stop
    assert {
        "temperature": 1.0,
        "top_k": 5,
        "max_tokens": 32000,
        "stop_sequences": '["END"]',
        "thinking": '{"type":"enabled"}',
    } == wire.asked


@pytest.mark.parametrize("nothing", ['""', "[]", "null"])
def test_a_system_prompt_with_nothing_in_it_is_absent(nothing: str):
    """T20: none, empty and missing are one."""
    wire = DIALECT.split(b'{"model":"p","messages":[],"system":%b}' % nothing.encode())

    assert wire.system is None


def test_ids_inside_the_user_id_are_told_apart():
    user = json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})

    assert {"device_id": "d", "session_id": "s"} == split(metadata={"user_id": user}).metadata
    assert {"user_id": "me"} == split(metadata={"user_id": "me"}).metadata
    assert {} == split(metadata={}).metadata


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON: Input data was truncated"),
        (b"[]", "expected `object`, got `array`"),
        (b'{"messages":[]}', "model: required, but missing"),
        (b'{"model":"p"}', "messages: required, but missing"),
        (b'{"model":"p","messages":{}}', "messages: expected `array`, got `object`"),
        (b'{"model":7,"messages":[]}', "model: expected `str`, got `int`"),
        (b'{"model":"p","messages":[],"max_tokens":-1}', "max_tokens: expected `int` >= 0"),
        (
            b'{"model":"p","messages":[],"stop_sequences":["a",2]}',
            "stop_sequences[1]: expected `str`, got `int`",
        ),
        (b'{"model":"\xff","messages":[]}', "not UTF-8: invalid start byte"),
        (b'{"model":"p","messages":[%b]}' % (b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    ],
)
def test_a_body_that_is_not_a_request_is_refused_with_the_place(body: bytes, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.split(body)

    assert said == str(refused.value)
    assert 400 == refused.value.status


def test_half_characters_become_replacement_characters():
    r"""JavaScript cuts strings inside a character; an escaped backslash is no such cut."""
    message = rb'{"role":"user","content":"\ud83d! \ude00 \ud83d\ude00 \\ud83d"}'
    wire = DIALECT.split(b'{"model":"p","messages":[%b]}' % message)

    assert "\ufffd! \ufffd \U0001f600 \\ud83d" == DIALECT.read(wire.messages[0])[0].text


# Messages


def test_results_come_first_as_sent_and_text_keeps_its_place():
    blocks = [
        {"type": "text", "text": "before"},
        {"type": "tool_result", "tool_use_id": "b", "content": "two"},
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "is_error": True,
            "content": [{"type": "text", "text": "on"}, {"type": "text", "text": "e"}],
        },
        {"type": "text", "text": "after"},
        {"type": "text", "text": "that"},
    ]

    assert (
        Message(role="user", text="before"),
        Message(role="tool", text="two", answers="b"),
        Message(role="tool", text="on\ne", answers="a"),
        Message(role="user", text="after\nthat"),
    ) == read({"role": "user", "content": blocks})


def test_results_alone_bring_no_user_message():
    blocks = [{"type": "tool_result", "tool_use_id": "a"}, {"type": "text", "text": ""}]

    assert (Message(role="tool", answers="a"),) == read({"role": "user", "content": blocks})


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_content_that_holds_nothing_is_the_same_in_every_spelling(role: str):
    """T20: None, "", [] and missing."""
    nothing = (Message(role=role),)  # type: ignore[arg-type]

    assert nothing == read({"role": role})
    assert nothing == read({"role": role, "content": None})
    assert nothing == read({"role": role, "content": ""})
    assert nothing == read({"role": role, "content": []})
    assert nothing == read({"role": role, "content": [{"type": "text", "text": ""}]})


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_markers_and_block_form_do_not_change_what_is_said(role: str):
    """T21: cache_control moves from turn to turn, and text flips between string and block."""
    marked = {"type": "text", "text": " hi ", "cache_control": {"type": "ephemeral"}}
    cited = {"type": "text", "text": " hi ", "citations": None}
    said = (Message(role=role, text=" hi "),)  # type: ignore[arg-type]

    assert said == read({"role": role, "content": " hi "})
    assert said == read({"role": role, "content": [marked]})
    assert said == read({"role": role, "content": [cited], "extra": 1})


def test_whitespace_in_text_is_kept():
    """T20: differences in whitespace are differences."""
    assert read({"role": "user", "content": "a "}) != read({"role": "user", "content": "a"})


def test_a_system_message_may_stand_in_the_middle():
    """M14."""
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert (Message(role="system", text="a\nb"),) == read({"role": "system", "content": blocks})


def test_an_assistant_turn_is_one_message():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "so"},
        {"type": "text", "text": " \n"},
        {"type": "text", "text": "I "},
        {"type": "tool_use", "id": "a", "name": "Bash", "input": {"b": 1, "a": [1, 2]}},
        {"type": "text", "text": "look"},
    ]

    assert (
        Message(
            role="assistant",
            text="I look",
            reasoning="hm\nso",
            calls=(ToolCall(id="a", name="Bash", arguments='{"b":1,"a":[1,2]}'),),
        ),
    ) == read({"role": "assistant", "content": blocks})


def test_arguments_stay_as_they_were_sent_but_for_blanks():
    """T18: repeated keys, overflowing numbers and escapes are neither lost nor refused."""
    sent = (
        rb'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"B",'
        rb'"input":{ "x": 1.0, "x": 1e999, "y": "\u00e9  " }}]}'
    )

    (message,) = DIALECT.read(msgspec.Raw(sent))

    assert r'{"x":1.0,"x":1e999,"y":"\u00e9  "}' == message.calls[0].arguments


def test_a_reference_to_a_tool_is_told_in_words():
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "tool_reference", "tool_name": "WebFetch"}],
    }

    assert "tool_reference: WebFetch" == read({"role": "user", "content": [result]})[0].text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ([], "expected `object`, got `array`"),
        ({"content": "x"}, "role: required, but missing"),
        ({"role": "robot"}, "role: expected user, assistant or system, got 'robot'"),
        ({"role": "user", "content": 3}, "content: expected `str | array | null`, got `int`"),
        ({"role": "user", "content": [{}]}, "content[0].type: required, but missing"),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "content[0].text: expected a string, got nothing",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
            "content[1]: image blocks are not supported here; expected text or tool_result",
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document"}]}
                ],
            },
            "content[0].content[0]: document blocks are not supported here; expected text",
        ),
        (
            {"role": "user", "content": [{"type": "tool_result"}]},
            "content[0].tool_use_id: expected a call's id, got nothing",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_result"}]},
            "content[0]: tool_result blocks are not supported here; "
            "expected text, thinking or tool_use",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
            "content[0].name: expected the name of a tool, got nothing",
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text": 3}]},
            "content[0].text: expected `str | null`, got `int`",
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_the_place(message: object, said: str):
    with pytest.raises(RequestError) as refused:
        read(message)

    assert said == str(refused.value)
    assert 400 == refused.value.status


@pytest.mark.parametrize(
    "message",
    [
        b'{"role":"user","content":"\xff"}',
        b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{"c":"\xff"}}]}',
    ],
)
def test_bytes_that_are_not_text_are_found_when_a_message_is_read(message: bytes):
    wire = DIALECT.split(b'{"model":"p","messages":[%b]}' % message)

    with pytest.raises(RequestError, match="not UTF-8"):
        DIALECT.read(wire.messages[0])


# System and tools


BILLING = "x-anthropic-billing-header: cc_version=2.1.220.241; cc_entrypoint=sdk-cli;"


def test_the_billing_block_is_no_part_of_the_system_prompt():
    """M03: it changes from agent to agent and at compaction."""
    prompt = [{"type": "text", "text": "You are"}, {"type": "text", "text": "an agent"}]
    one = [{"type": "text", "text": BILLING}, *prompt]
    other = [{"type": "text", "text": BILLING.replace("241", "b7d")}, *prompt]

    assert (Message(role="system", text="You are\nan agent"),) == DIALECT.read_system(raw(one))
    assert DIALECT.read_system(raw(other)) == DIALECT.read_system(raw(one))
    assert DIALECT.read_system(raw(prompt)) == DIALECT.read_system(raw(one))
    assert DIALECT.read_system(raw("You are\nan agent")) == DIALECT.read_system(raw(one))
    assert DIALECT.read_system(raw(f"{BILLING}\nYou are")) == DIALECT.read_system(raw("You are"))


@pytest.mark.parametrize("system", ["", [], BILLING, [{"type": "text", "text": BILLING}]])
def test_a_system_prompt_that_says_nothing_is_no_message(system: object):
    assert () == DIALECT.read_system(raw(system))


def test_tools_are_read_in_order_and_those_of_the_server_left_out():
    tools = [
        {"name": "Z", "description": "d", "input_schema": {"type": "object", "b": 1, "a": 2}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "custom", "name": "A", "defer_loading": True, "cache_control": {}},
    ]

    assert (
        Tool(name="Z", description="d", parameters='{"type":"object","b":1,"a":2}'),
        Tool(name="A", description="", parameters='{"type":"object","properties":{}}'),
    ) == DIALECT.read_tools(raw(tools))


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({}, "tools: expected `array`, got `object`"),
        ([{"name": "a"}, {}], "tools[1].name: required, but missing"),
        ([{"name": 1}], "tools[0].name: expected `str`, got `int`"),
    ],
)
def test_tools_that_cannot_be_read_are_refused_with_the_place(tools: object, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.read_tools(raw(tools))

    assert said == str(refused.value)


# Evidence


def test_evidence_shows_purpose_and_no_keys():
    """M03: the billing block stays visible where calls are classed."""
    wire = split(
        system=[{"type": "text", "text": BILLING}, {"type": "text", "text": "x" * 5000}],
        tools=[{"name": "Bash"}, {"name": "web_search", "type": "web_search_20250305"}],
        metadata={"user_id": '{"session_id":"s"}'},
        messages=[
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": 'the "user" said so'},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "no"},
                    {"type": "text", "text": "y" * 500},
                    {"type": "text", "text": "CRITICAL: Respond"},
                ],
            },
            {"role": "system", "content": "reminder"},
        ],
    )

    evidence = DIALECT.evidence(
        wire, {"X-Api-Key": "k", "Authorization": "b", "Cookie": "c", "User-Agent": "claude-cli"}
    )

    assert "messages" == evidence.dialect
    assert {"user-agent": "claude-cli"} == evidence.headers
    assert {"session_id": "s"} == evidence.metadata
    assert (BILLING + "\n" + "x" * 5000)[:4000] == evidence.system
    assert ("Bash",) == evidence.tools
    assert ("y" * 400, "CRITICAL: Respond") == evidence.last_user
    assert 4 == evidence.num_messages


def test_evidence_of_a_bare_request_is_empty():
    evidence = DIALECT.evidence(WIRE, {})

    assert ("", (), (), 0) == (
        evidence.system,
        evidence.tools,
        evidence.last_user,
        evidence.num_messages,
    )


# Replies


def test_blank_text_beside_a_call_is_not_sent():
    body = json.loads(DIALECT.body([reply(text="\n\n", calls=(CALL,))], WIRE))

    assert ["tool_use"] == [block["type"] for block in body["content"]]


def test_a_reply_that_says_nothing_has_no_blocks():
    assert [] == json.loads(DIALECT.body([reply()], WIRE))["content"]
    assert b"content_block" not in DIALECT.events([reply()], WIRE)


def test_a_stream_opens_fills_and_closes_each_block():
    said = reply(text="t", reasoning="r", calls=(CALL,))
    events = [
        json.loads(frame.split(b"data: ", 1)[1])
        for frame in DIALECT.events([said], WIRE).strip().split(b"\n\n")
    ]

    assert [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_delta"],
        "content_block_stop",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ] == [event["type"] for event in events]
    assert [0, 0, 0, 0, 1, 1, 1, 2, 2, 2] == [
        event["index"] for event in events if "index" in event
    ]
    assert {"type": "input_json_delta", "partial_json": CALL.arguments} == events[9]["delta"]


def test_a_signature_belongs_to_its_thought():
    one, same, other = (
        json.loads(DIALECT.body([reply(reasoning=thought)], WIRE))["content"][0]["signature"]
        for thought in ("a", "a", "b")
    )

    assert one
    assert one == same
    assert one != other


@pytest.mark.parametrize("arguments", ["", "[1]", '{"a":', "null", "NaN"])
def test_arguments_that_are_no_object_travel_under_a_key_and_come_back(arguments: str):
    """T18: invalid arguments are returned as they were sampled."""
    call = replace(CALL, arguments=arguments)
    body = json.loads(DIALECT.body([reply(calls=(call,))], WIRE))

    assert {"__raw_arguments": arguments} == body["content"][0]["input"]
    assert (call,) == read(body)[0].calls


# Errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("bad", where="messages"), "invalid_request_error"),
        (Unauthorized("no"), "authentication_error"),
        (NotFound("no"), "not_found_error"),
        (TooLarge("no"), "request_too_large"),
        (Overloaded("later", retry_after_s=1), "rate_limit_error"),
        (Unavailable("later"), "overloaded_error"),
    ],
)
def test_an_error_is_told_by_its_type(error: RequestError, kind: str):
    assert {"type": "error", "error": {"type": kind, "message": str(error)}} == json.loads(
        DIALECT.error(error)
    )


def test_an_overlong_prompt_is_refused_in_the_words_that_start_a_compaction():
    error = ContextOverflow(prompt_tokens=215000, max_tokens=200000)

    assert {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 215000 tokens > 200000 maximum",
        },
    } == json.loads(DIALECT.error(error))
