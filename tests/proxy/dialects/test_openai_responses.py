"""OpenAI Responses, read and written."""

import json
from typing import Any

import msgspec
import pytest

from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.types.conversation import Message, Reply, Tool, ToolCall, Usage
from gyre.types.errors import ContextOverflow, RequestError, Unavailable

DIALECT = OpenAIResponses()
NAMESPACE = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"b": 1, "a": 2}}],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edit",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
}


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def read(**item: object) -> tuple[Message, ...]:
    return DIALECT.read(raw(item))


def split(**fields: object) -> Any:
    return DIALECT.split(json.dumps({"model": "policy", "input": []} | fields).encode())


def reply(**said: Any) -> Reply:
    finish = said.pop("finish", "tool_calls" if said.get("calls") else "stop")
    return Reply(
        message=Message(role="assistant", **said),
        finish=finish,
        usage=Usage(prompt_tokens=100, output_tokens=7, cached_tokens=60),
        model="policy",
        id="c1",
    )


def output(said: Reply, wire: Any) -> list[Any]:
    return json.loads(DIALECT.body([said], wire))["output"]


def events(said: Reply, wire: Any) -> list[Any]:
    frames = DIALECT.events([said], wire).removesuffix(b"\n\n").split(b"\n\n")
    told = []
    for frame in frames:
        name, data = frame.split(b"\n")
        told.append(json.loads(data.removeprefix(b"data: ")))
        assert told[-1]["type"].encode() == name.removeprefix(b"event: ")
    return told


# Requests


def test_a_request_is_split_and_its_bulk_stays_bytes():
    body = (
        b'{"model":"policy","instructions":"be","input":[ {"role": "user","content":"hi"}],'
        b'"tools":[{"type":"web_search"}],"stream":true,"max_output_tokens":9,"store":false,'
        b'"include":["reasoning.encrypted_content"],"reasoning":{"effort":"high"},"top_p":0.5}'
    )

    wire = DIALECT.split(body)

    assert [b'{"role": "user","content":"hi"}'] == [bytes(one) for one in wire.messages]
    assert wire.system is not None
    assert (Message(role="system", text="be"),) == DIALECT.read_system(wire.system)
    assert wire.tools is not None
    assert b'[{"type":"web_search"}]' == bytes(wire.tools)
    assert (True, 9, 1) == (wire.stream, wire.max_tokens, wire.choices)
    assert {"top_p": 0.5, "max_output_tokens": 9, "reasoning": '{"effort":"high"}'} == wire.asked


def test_a_string_is_one_user_message():
    wire = split(input='say "hi"')

    assert (Message(role="user", text='say "hi"'),) == DIALECT.read(wire.messages[0])
    assert 1 == len(wire.messages)


@pytest.mark.parametrize("instructions", ["", None])
def test_instructions_that_say_nothing_are_absent(instructions: str | None):
    """T20: so that a developer message may open the conversation."""
    assert split(instructions=instructions).system is None
    assert split().system is None


def test_ids_of_the_turn_are_metadata():
    turn = {"thread_id": "t", "window_number": 2, "compaction": {"trigger": "auto"}, "x": None}
    expected = {
        "thread_id": "t",
        "window_number": "2",
        "compaction.trigger": "auto",
        "prompt_cache_key": "k",
    }

    inside = split(
        client_metadata={"x-codex-turn-metadata": json.dumps(turn)}, prompt_cache_key="k"
    )
    beside = split(**{"x-codex-turn-metadata": turn}, prompt_cache_key="k")

    assert expected == inside.metadata
    assert expected == beside.metadata
    assert {"a": "1"} == split(client_metadata={"a": "1"}).metadata


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"model":"p"}', "input: required, but missing"),
        (b'{"model":"p","input":3}', "input: expected `str | array`, got `int`"),
        (
            b'{"model":"p","input":[],"previous_response_id":"resp_1"}',
            "previous_response_id: this proxy keeps no responses; "
            "expected null, and the whole history in input",
        ),
        (
            b'{"model":"p","input":[],"conversation":{"id":"x"}}',
            "conversation: this proxy keeps no responses; "
            "expected null, and the whole history in input",
        ),
        (b'{"model":"p","input":[%b]}' % (b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    ],
)
def test_a_body_that_is_not_a_request_is_refused_with_the_place(body: bytes, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.split(body)

    assert said == str(refused.value)


def test_instructions_must_be_text():
    wire = split(instructions=[1])

    with pytest.raises(RequestError, match="instructions: expected `str`, got `array`"):
        DIALECT.read_system(wire.system)


# Items


def test_messages_are_read_by_role():
    """M14: system and developer messages may stand anywhere."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    spoken = [{"type": "output_text", "text": "a", "annotations": []}] * 2

    assert (Message(role="user", text="a\nb"),) == read(role="user", content=parts)
    assert (Message(role="system", text="s"),) == read(
        type="message", id="m", role="developer", content="s"
    )
    assert (Message(role="system", text="s"),) == read(role="system", content="s")
    assert (Message(role="assistant", text="aa"),) == read(
        type="message", role="assistant", status="completed", content=spoken
    )
    assert (Message(role="assistant"),) == read(type="message", role="assistant", content=[])


def test_thinking_is_read_from_its_words_else_from_its_summary():
    summary = [{"type": "summary_text", "text": "short"}]
    words = [{"type": "reasoning_text", "text": "long"}]

    assert (Message(role="assistant", reasoning="long"),) == read(
        type="reasoning", summary=summary, content=words
    )
    assert (Message(role="assistant", reasoning="short"),) == read(
        type="reasoning", summary=summary, content=None, encrypted_content=None
    )
    assert (Message(role="assistant", reasoning="short\nlong"),) == read(
        type="reasoning", summary=[*summary, {"type": "summary_text", "text": "long"}]
    )


def test_thinking_that_cannot_be_read_is_nothing():
    assert () == read(type="reasoning", summary=[], encrypted_content="gAAA")


@pytest.mark.parametrize("arguments", ['{"a": 1}', "", "{broken"])
def test_arguments_are_kept_as_text(arguments: str):
    """T12: this dialect's clients echo them verbatim."""
    (message,) = read(type="function_call", id="fc", call_id="c", name="x", arguments=arguments)

    assert (ToolCall(id="c", name="x", arguments=arguments),) == message.calls


def test_an_object_of_arguments_becomes_its_text():
    """T12."""
    (message,) = read(type="function_call", call_id="c", name="x", arguments={"b": 1, "a": 2})

    assert '{"b":1,"a":2}' == message.calls[0].arguments


def test_a_namespace_is_part_of_the_name():
    (message,) = read(
        type="function_call", call_id="c", name="spawn", namespace="agents", arguments="{}"
    )

    assert "agents.spawn" == message.calls[0].name


def test_a_custom_call_is_a_call_with_one_argument():
    (message,) = read(type="custom_tool_call", call_id="c", name="apply_patch", input='a "b"\n')

    assert {"input": 'a "b"\n'} == json.loads(message.calls[0].arguments)


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_outputs_answer_their_call(kind: str):
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]

    assert (Message(role="tool", text="done", answers="c"),) == read(
        type=kind, call_id="c", output="done"
    )
    assert (Message(role="tool", text="a\nb", answers="c"),) == read(
        type=kind, call_id="c", output=parts
    )


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ([], "expected `object`, got `array`"),
        ({}, "type: required, but missing"),
        (
            {"type": "item_reference", "id": "x"},
            "type: item_reference items are not supported; expected message, reasoning, "
            "function_call, custom_tool_call or the output of a call",
        ),
        (
            {"type": "computer_call_output", "output": {}},
            "type: computer_call_output items are not supported; expected message, reasoning, "
            "function_call, custom_tool_call or the output of a call",
        ),
        (
            {"role": "robot", "content": "x"},
            "role: expected user, assistant, system or developer, got 'robot'",
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "content[0]: input_image parts are not supported; expected text",
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "a"}, {"type": "input_image"}],
            },
            "output[1]: input_image parts are not supported; expected text",
        ),
        ({"type": "function_call", "name": "x"}, "call_id: required, but missing"),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "x"},
            "input: expected a string, got nothing",
        ),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_with_the_place(item: object, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.read(raw(item))

    assert said == str(refused.value)


def test_bytes_that_are_not_text_are_found_when_an_item_is_read():
    wire = DIALECT.split(b'{"model":"p","input":[{"role":"user","content":"\xff"}]}')

    with pytest.raises(RequestError, match="not UTF-8"):
        DIALECT.read(wire.messages[0])


# Tools and evidence


def test_tools_are_flattened_and_those_of_the_server_left_out():
    tools = [
        {"type": "function", "name": "exec", "description": "d", "parameters": {"z": 1}},
        {"type": "web_search"},
        NAMESPACE,
        {"type": "local_shell"},
        PATCH,
    ]

    assert (
        Tool(name="exec", description="d", parameters='{"z":1}'),
        Tool(name="multi_agent_v1.spawn_agent", description="", parameters='{"b":1,"a":2}'),
        Tool(
            name="apply_patch",
            description="edit",
            parameters='{"type":"object","properties":{"input":{"type":"string",'
            '"description":"start: x"}},"required":["input"]}',
        ),
    ) == DIALECT.read_tools(raw(tools))


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([{"name": "x"}], "tools[0].type: required, but missing"),
        ([{"type": "function"}], "tools[0].name: expected a string, got nothing"),
        (
            [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}],
            "tools[0].tools[0].name: expected a string, got nothing",
        ),
    ],
)
def test_tools_that_cannot_be_read_are_refused_with_the_place(tools: object, said: str):
    with pytest.raises(RequestError) as refused:
        DIALECT.read_tools(raw(tools))

    assert said == str(refused.value)


def test_evidence_joins_what_headers_and_body_tell_of_the_turn():
    header = {"thread_id": "t", "request_kind": "compaction", "turn_id": "from the header"}
    wire = split(
        client_metadata={"x-codex-turn-metadata": json.dumps({"turn_id": "u"})},
        instructions="be",
        tools=[NAMESPACE, {"type": "web_search"}],
        input=[
            {"type": "message", "role": "developer", "content": "rules"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do"}]},
            {"type": "function_call", "call_id": "c", "name": "x", "arguments": '{"a":"user"}'},
        ],
    )

    evidence = DIALECT.evidence(
        wire, {"X-Codex-Turn-Metadata": json.dumps(header), "Authorization": "Bearer k"}
    )

    assert "responses" == evidence.dialect
    assert ["x-codex-turn-metadata"] == list(evidence.headers)
    assert {"thread_id": "t", "request_kind": "compaction", "turn_id": "u"} == evidence.metadata
    assert "be" == evidence.system
    assert ("multi_agent_v1.spawn_agent",) == evidence.tools
    assert ("do",) == evidence.last_user
    assert 3 == evidence.num_messages


# Replies


def test_a_call_of_a_namespaced_tool_names_its_namespace():
    call = ToolCall(id="c", name="multi_agent_v1.spawn_agent", arguments="{}")
    (item,) = output(reply(calls=(call,)), split(tools=[NAMESPACE]))

    assert ("multi_agent_v1", "spawn_agent", "c") == (
        item["namespace"],
        item["name"],
        item["call_id"],
    )
    assert (call,) == DIALECT.read(raw(item))[0].calls


def test_a_dotted_name_that_is_no_namespaces_stays_whole():
    call = ToolCall(id="c", name="a.b", arguments="{}")
    wire = split(tools=[{"type": "function", "name": "a.b"}])
    (item,) = output(reply(calls=(call,)), wire)

    assert "a.b" == item["name"]
    assert "namespace" not in item


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "*** Begin\\nPatch"}', "*** Begin\nPatch"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ("*** Begin", "*** Begin"),
    ],
)
def test_a_call_of_a_custom_tool_carries_its_text(arguments: str, text: str):
    call = ToolCall(id="c", name="apply_patch", arguments=arguments)
    wire = split(tools=[PATCH])
    (item,) = output(reply(calls=(call,)), wire)
    kinds = [event["type"] for event in events(reply(calls=(call,)), wire)]

    assert ("custom_tool_call", text, "c") == (item["type"], item["input"], item["call_id"])
    assert "response.custom_tool_call_input.done" in kinds


def test_items_have_ids_of_their_own():
    calls = tuple(ToolCall(id=id_, name="x", arguments="{}") for id_ in "ab")
    ids = [item["id"] for item in output(reply(text="t", reasoning="r", calls=calls), split())]

    assert ["rs_c1", "msg_c1", "fc_c1_0", "fc_c1_1"] == ids


def test_a_stream_opens_fills_and_closes_each_item():
    call = ToolCall(id="c", name="x", arguments="{}")
    told = events(reply(text="t", reasoning="r", calls=(call,)), split())

    assert [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ] == [event["type"] for event in told]
    assert list(range(len(told))) == [event["sequence_number"] for event in told]
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == told[-1]["response"]["output"]
    added = [event["item"] for event in told if event["type"] == "response.output_item.added"]
    assert [[], [], ""] == [item.get("content", item.get("arguments")) for item in added]


def test_a_reply_that_was_cut_ends_incomplete():
    told = events(reply(text="t", finish="length"), split())

    assert "response.incomplete" == told[-1]["type"]
    assert {"reason": "max_output_tokens"} == told[-1]["response"]["incomplete_details"]
    assert "incomplete" == told[-1]["response"]["output"][0]["status"]
    assert told[0]["response"]["incomplete_details"] is None


def test_a_ping_is_an_event_that_says_what_it_is():
    assert b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n' == DIALECT.ping


def test_an_overlong_prompt_is_refused_under_the_code_clients_look_for():
    told = json.loads(DIALECT.error(ContextOverflow(prompt_tokens=9, max_tokens=8)))["error"]

    assert ("context_length_exceeded", "input") == (told["code"], told["param"])


def test_a_response_that_could_not_be_made_says_that_it_may_be_tried_again():
    """Codex repeats a response that failed with such a code, and gives up on others."""
    _, data = DIALECT.error_event(Unavailable("no engine")).strip().split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))

    assert "response.failed" == told["type"]
    assert {"code": "server_error", "message": "no engine"} == told["response"]["error"]
