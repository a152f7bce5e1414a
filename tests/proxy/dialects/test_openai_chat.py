"""OpenAI Chat Completions, read and written."""

import json
from typing import Any

import msgspec
import pytest

from gyre.proxy.dialects.openai_chat import OpenAIChat
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

DIALECT = OpenAIChat()
WIRE = DIALECT.split(b'{"model":"policy","messages":[]}')
CALL = ToolCall(id="call_1", name="bash", arguments='{"command": "ls"}')


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def read(**message: object) -> Message:
    (found,) = DIALECT.read(raw(message))
    return found


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


def chunks(replies: list[Reply], wire: Any) -> list[Any]:
    frames = DIALECT.events(replies, wire).removesuffix(b"\n\n").split(b"\n\n")
    assert b"data: [DONE]" == frames[-1]
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-1]]


# Requests


def test_a_request_is_split_and_its_bulk_stays_bytes():
    body = (
        b'{"model":"policy","messages":[ {"role": "user","content":"hi"}],"stream":true,'
        b'"tools":[{"type":"function","function":{"name":"bash"}}],"n":3,"temperature":0,'
        b'"stream_options":{"include_usage":true},"max_tokens":10,"max_completion_tokens":20,'
        b'"stop":"END","seed":7,"tool_choice":"auto","unknown":{"x":[1]}}'
    )

    wire = DIALECT.split(body)

    assert [b'{"role": "user","content":"hi"}'] == [bytes(one) for one in wire.messages]
    assert wire.tools is not None
    assert b'[{"type":"function","function":{"name":"bash"}}]' == bytes(wire.tools)
    assert wire.system is None
    assert (True, True, 3, 20, ("END",)) == (
        wire.stream,
        wire.include_usage,
        wire.choices,
        wire.max_tokens,
        wire.stop,
    )
    assert {
        "temperature": 0.0,
        "seed": 7,
        "max_tokens": 10,
        "max_completion_tokens": 20,
        "stop": "END",
        "n": 3,
        "tool_choice": "auto",
    } == wire.asked


def test_what_was_not_asked_for_is_absent():
    wire = split(stream=None, n=None, stop=None, stream_options=None, max_tokens=5, tools=[])

    assert (False, False, 1, 5, (), "", None) == (
        wire.stream,
        wire.include_usage,
        wire.choices,
        wire.max_tokens,
        wire.stop,
        wire.template,
        wire.tools,
    )
    assert {"max_tokens": 5} == wire.asked
    assert {} == wire.metadata


def test_template_settings_are_the_same_in_any_order():
    """M02: template settings are part of what must match."""
    one = split(chat_template_kwargs={"enable_thinking": False, "a": {"c": 1, "b": 2}})
    same = split(chat_template_kwargs={"a": {"b": 2, "c": 1}, "enable_thinking": False})
    other = split(chat_template_kwargs={"enable_thinking": True})

    assert '{"a":{"b":2,"c":1},"enable_thinking":false}' == one.template
    assert one.template == same.template
    assert one.template != other.template
    assert "" == split(chat_template_kwargs={}).template


def test_ids_of_the_body_are_metadata():
    wire = split(user="u", prompt_cache_key="k", metadata={"a": "1", "b": {"c": 2, "d": None}})

    assert {"user": "u", "prompt_cache_key": "k", "a": "1", "b.c": "2"} == wire.metadata


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON: Input data was truncated"),
        (b'{"model":"p","messages":"hi"}', "messages: expected `array`, got `str`"),
        (b'{"model":"p","messages":[],"n":0}', "n: expected `int` >= 1"),
        (b'{"model":"p","messages":[],"n":1000}', "n: expected `int` <= 128"),
        (b'{"model":"p","messages":[],"stop":3}', "stop: expected `str | array | null`, got `int`"),
        (
            b'{"model":"p","messages":[],"stream_options":{"include_usage":1}}',
            "stream_options.include_usage: expected `bool | null`, got `int`",
        ),
        (
            b'{"model":"p","messages":[],"chat_template_kwargs":[1]}',
            "chat_template_kwargs: expected `object`, got `array`",
        ),
        (b'{"model":"p","messages":[],"temperature":1e999}', "temperature: number out of range"),
        (b'{"model":"p","messages":[%b]}' % (b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    ],
)
def test_a_body_that_is_not_a_request_is_refused_with_the_place(body: bytes, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.split(body)

    assert said == str(refused.value)


# Messages


def test_every_role_is_read():
    """M14: system messages may stand anywhere."""
    assert Message(role="system", text="s") == read(role="system", content="s")
    assert Message(role="system", text="s") == read(role="developer", content="s")
    assert Message(role="user", text="u") == read(role="user", content="u", name="me")
    assert Message(role="tool", text="r", answers="call_1", name="bash") == read(
        role="tool", content="r", tool_call_id="call_1", name="bash"
    )


def test_parts_are_joined():
    parts = [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}]

    assert "a\nb" == read(role="user", content=parts).text
    assert "a\nb" == read(role="tool", content=parts, tool_call_id="c").text
    assert "ab" == read(role="assistant", content=parts).text


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_content_that_holds_nothing_is_the_same_in_every_spelling(role: str):
    """T20: None, "", [] and missing; keys that say nothing."""
    nothing = Message(role=role)  # type: ignore[arg-type]

    assert nothing == read(role=role)
    assert nothing == read(role=role, content=None)
    assert nothing == read(role=role, content="")
    assert nothing == read(role=role, content=[])
    assert nothing == read(
        role=role, content="", provider_specific_fields={"x": 1}, tool_calls=None, refusal=None
    )


def test_thinking_has_two_names_and_may_be_absent():
    assert "hm" == read(role="assistant", reasoning_content="hm").reasoning
    assert "hm" == read(role="assistant", reasoning="hm").reasoning
    assert "" == read(role="assistant", reasoning_content="").reasoning
    assert read(role="assistant", content="x").reasoning is None


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [
        ('{"command": "ls"}', '{"command": "ls"}'),
        ({"command": "ls", "n": 1.0}, '{"command":"ls","n":1.0}'),
        ("{not json", "{not json"),
        ("", ""),
        (None, ""),
    ],
)
def test_arguments_may_be_text_or_an_object_or_nothing(sent: object, arguments: str):
    """T12: text is kept as it came, an object becomes its text."""
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": sent}}
    message = read(role="assistant", content=None, tool_calls=[call])

    assert (ToolCall(id="a", name="bash", arguments=arguments),) == message.calls


def test_parallel_calls_keep_their_order_and_old_fashioned_ones_are_ignored():
    """T17."""
    calls = [
        {"id": id_, "index": 0, "function": {"name": "bash", "arguments": "{}"}} for id_ in "ba"
    ]
    message = read(role="assistant", tool_calls=calls, function_call={"name": "x"})

    assert ["b", "a"] == [call.id for call in message.calls]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("hi", "expected `object`, got `str`"),
        ({"content": "x"}, "role: required, but missing"),
        (
            {"role": "function"},
            "role: expected system, developer, user, assistant or tool, got 'function'",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "content[1]: image_url parts are not supported; expected text",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "content[0].text: expected a string, got nothing",
        ),
        ({"role": "tool", "content": "x"}, "tool_call_id: expected a call's id, got nothing"),
        (
            {"role": "assistant", "tool_calls": [{"id": "a"}]},
            "tool_calls[0].function: required, but missing",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "x"}}]},
            "tool_calls[0].id: required, but missing",
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_the_place(message: object, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.read(raw(message))

    assert said == str(refused.value)


def test_bytes_that_are_not_text_are_found_when_a_message_is_read():
    wire = DIALECT.split(b'{"model":"p","messages":[{"role":"user","content":"\xff"}]}')

    with pytest.raises(RequestError, match="not UTF-8"):
        DIALECT.read(wire.messages[0])


# Tools and evidence


def test_tools_are_read_in_order():
    tools = [
        {
            "type": "function",
            "function": {"name": "z", "description": "d", "parameters": {"b": 1, "a": 2}},
        },
        {"type": "function", "function": {"name": "a", "strict": True}},
    ]

    assert (
        Tool(name="z", description="d", parameters='{"b":1,"a":2}'),
        Tool(name="a", description="", parameters='{"type":"object","properties":{}}'),
    ) == DIALECT.read_tools(raw(tools))


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({}, "tools: expected `array`, got `object`"),
        ([{"type": "function"}], "tools[0].function: expected a function, got nothing"),
        ([{"type": "custom"}], "tools[0]: custom tools are not supported; expected function"),
    ],
)
def test_tools_that_cannot_be_read_are_refused_with_the_place(tools: object, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.read_tools(raw(tools))

    assert said == str(refused.value)


def test_evidence_shows_purpose_and_no_keys():
    wire = split(
        user="u",
        tools=[{"type": "function", "function": {"name": "bash"}}],
        messages=[
            {"role": "system", "content": "You are a title generator" + "x" * 5000},
            {"role": "user", "content": [{"type": "text", "text": "y" * 500}]},
            {"role": "assistant", "tool_calls": []},
            {"role": "tool", "tool_call_id": "a", "content": 'the "user" file'},
        ],
    )

    evidence = DIALECT.evidence(wire, {"authorization": "Bearer k", "X-Session-Id": "s"})

    assert "chat" == evidence.dialect
    assert {"x-session-id": "s"} == evidence.headers
    assert {"user": "u"} == evidence.metadata
    assert ("You are a title generator" + "x" * 5000)[:4000] == evidence.system
    assert ("bash",) == evidence.tools
    assert ("y" * 400,) == evidence.last_user
    assert 4 == evidence.num_messages


def test_evidence_of_a_request_without_system_text_has_none():
    assert "" == DIALECT.evidence(split(messages=[{"role": "user", "content": "u"}]), {}).system
    assert "" == DIALECT.evidence(WIRE, {}).system


# Replies


def test_a_reply_of_calls_alone_has_no_content():
    choice = json.loads(DIALECT.body([reply(calls=(CALL,))], WIRE))["choices"][0]

    assert {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "bash", "arguments": '{"command": "ls"}'},
            }
        ],
    } == choice["message"]
    assert "tool_calls" == choice["finish_reason"]


def test_a_reply_that_says_nothing_has_empty_content():
    choice = json.loads(DIALECT.body([reply()], WIRE))["choices"][0]

    assert {"role": "assistant", "content": ""} == choice["message"]


def test_a_stream_is_cut_into_role_thinking_text_calls_and_end():
    told = chunks([reply(text="t", reasoning="r", calls=(CALL, CALL))], WIRE)

    assert [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "r"},
        {"content": "t"},
        *(
            {
                "tool_calls": [
                    {
                        "index": index,
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                    }
                ]
            }
            for index in (0, 1)
        ),
        {},
    ] == [chunk["choices"][0]["delta"] for chunk in told]
    assert [None] * 5 + ["tool_calls"] == [chunk["choices"][0]["finish_reason"] for chunk in told]
    assert all("usage" not in chunk for chunk in told)


def test_counts_come_last_when_they_are_asked_for():
    told = chunks([reply(text="t")], split(stream_options={"include_usage": True}))

    assert [] == told[-1]["choices"]
    assert 107 == told[-1]["usage"]["total_tokens"]
    assert [None] * (len(told) - 1) == [chunk["usage"] for chunk in told[:-1]]


def test_choices_follow_each_other():
    """T29: one stream holds every choice under its index."""
    told = chunks([reply(text="a"), reply(text="b", finish="length")], WIRE)
    choices = [chunk["choices"][0] for chunk in told]

    assert [0, 0, 0, 1, 1, 1] == [choice["index"] for choice in choices]
    assert [None, None, "stop", None, None, "length"] == [
        choice["finish_reason"] for choice in choices
    ]


# Errors


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (RequestError("bad", where="messages"), "invalid_request_error", None),
        (Unauthorized("no"), "invalid_request_error", "invalid_api_key"),
        (NotFound("no"), "invalid_request_error", "not_found"),
        (TooLarge("no"), "invalid_request_error", "request_too_large"),
        (Overloaded("later", retry_after_s=1), "rate_limit_error", "rate_limit_exceeded"),
        (Unavailable("later"), "server_error", None),
    ],
)
def test_an_error_is_told_by_type_and_code(error: RequestError, kind: str, code: str | None):
    assert {
        "error": {"message": str(error), "type": kind, "param": None, "code": code}
    } == json.loads(DIALECT.error(error))


def test_an_overlong_prompt_is_refused_in_the_words_clients_look_for():
    told = json.loads(DIALECT.error(ContextOverflow(prompt_tokens=9000, max_tokens=8192)))["error"]

    assert "context_length_exceeded" == told["code"]
    assert "messages" == told["param"]
    assert told["message"].startswith(
        "This model's maximum context length is 8192 tokens. "
        "However, your messages resulted in 9000 tokens."
    )
