"""Anthropic Messages, read and written, with the official client as the judge."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.messages import Messages
from gyre.words.conversation import Message, Reply, Tool, ToolCall, Usage
from gyre.words.errors import ContextOverflow, NotFound, Overloaded, RequestError, TooLarge
from gyre.words.errors import Unauthorized, Unavailable

DIALECT = Messages()
WIRE = DIALECT.split(b'{"model":"policy","messages":[]}')
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 64}
HELLO = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def client(parrot: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="k", base_url=parrot.url, max_retries=0) as client:
        yield client


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
    wire = DIALECT.split(
        rb'{"model":"p","messages":[{"role":"user","content":"\ud83d! \ude00 \ud83d\ude00 \\ud83d"}]}'
    )

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


REPLIES = [
    (reply(text="hello"), "end_turn", ["text"]),
    (reply(text="hello", reasoning="hm"), "end_turn", ["thinking", "text"]),
    (reply(reasoning="hm", calls=(CALL, OTHER)), "tool_use", ["thinking", "tool_use", "tool_use"]),
    (reply(text="look", calls=(CALL,)), "tool_use", ["text", "tool_use"]),
    (reply(text="\n\n", calls=(CALL,)), "tool_use", ["tool_use"]),
    (reply(text="cut", finish="length"), "max_tokens", ["text"]),
    (reply(), "end_turn", []),
    (reply(text="\n"), "end_turn", ["text"]),
]


def ask(client: anthropic.Anthropic, parrot: Any, said: Reply, *, stream: bool) -> Any:
    if stream:
        parrot.streams(DIALECT.ping + DIALECT.events([said], WIRE))
        with client.messages.stream(messages=[HELLO], **ASK) as events:
            return events.get_final_message()
    parrot.says(DIALECT.body([said], WIRE))
    return client.messages.create(messages=[HELLO], **ASK)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("said", "stop_reason", "kinds"), REPLIES)
def test_the_official_client_reads_a_reply(
    client: Any, parrot: Any, said: Reply, stop_reason: str, kinds: list[str], stream: bool
):
    """T30: a stream says what a whole body says."""
    message = ask(client, parrot, said, stream=stream)

    anthropic.types.Message.model_validate(message.to_dict(), strict=True)
    assert stop_reason == message.stop_reason
    assert kinds == [block.type for block in message.content]
    assert "msg_c1" == message.id
    assert "policy" == message.model
    assert (40, 60, 0, 7) == (
        message.usage.input_tokens,
        message.usage.cache_read_input_tokens,
        message.usage.cache_creation_input_tokens,
        message.usage.output_tokens,
    )


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


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v))
CALLS = st.builds(
    ToolCall,
    id=st.uuids().map(lambda id: f"toolu_{id.hex}"),
    name=st.sampled_from(["Bash", "Read", "mcp__x__y"]),
    arguments=st.dictionaries(TEXTS, VALUES, max_size=3).map(json.dumps),
)
SAID = st.builds(
    Message,
    role=st.just("assistant"),
    text=TEXTS,
    reasoning=st.none() | TEXTS.filter(bool),
    calls=st.lists(CALLS, max_size=3, unique_by=lambda call: call.id).map(tuple),
)


@settings(max_examples=60)
@given(message=SAID, stream=st.booleans())
def test_a_reply_comes_back_through_the_official_client_as_it_was_sent(
    client: Any, parrot: Any, message: Message, stream: bool
):
    """T22: what a client echoes reads as what was returned; blank text reads as none."""
    said = replace(reply(), message=message)
    answer = ask(client, parrot, said, stream=stream)
    if answer.content:
        echo = {"role": "assistant", "content": answer.content}
        client.messages.create(messages=[HELLO, echo, HELLO], **ASK)
        (heard,) = DIALECT.read(DIALECT.split(parrot.heard).messages[1])
    else:
        heard = Message(role="assistant")

    assert message.reasoning == heard.reasoning
    assert (message.text if message.text.strip() else "") == heard.text
    assert [(call.id, call.name, json.loads(call.arguments)) for call in message.calls] == [
        (call.id, call.name, json.loads(call.arguments)) for call in heard.calls
    ]


# Errors


@pytest.mark.parametrize(
    ("error", "kind", "raised"),
    [
        (RequestError("bad", where="messages"), "invalid_request_error", "BadRequestError"),
        (Unauthorized("no"), "authentication_error", "AuthenticationError"),
        (NotFound("no"), "not_found_error", "NotFoundError"),
        (TooLarge("no"), "request_too_large", "RequestTooLargeError"),
        (Overloaded("later", retry_after_s=1), "rate_limit_error", "RateLimitError"),
        (Unavailable("later"), "overloaded_error", "OverloadedError"),
    ],
)
def test_an_error_has_the_shape_that_the_official_client_knows(
    client: Any, parrot: Any, error: RequestError, kind: str, raised: str
):
    parrot.says(DIALECT.error(error), status=error.status)
    with pytest.raises(anthropic.APIStatusError) as refused:
        client.messages.create(messages=[HELLO], **ASK)

    assert {"type": "error", "error": {"type": kind, "message": str(error)}} == refused.value.body
    assert raised == type(refused.value).__name__


def test_an_overlong_prompt_is_refused_in_the_words_that_start_a_compaction():
    error = ContextOverflow(prompt_tokens=215000, max_tokens=200000)

    assert {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 215000 tokens > 200000 maximum",
        },
    } == json.loads(DIALECT.error(error))
