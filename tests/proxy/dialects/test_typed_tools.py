"""Tools that a client runs and offers by a type alone: shown as functions, called in their form."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from anthropic.types.beta import BetaMemoryTool20250818Command, BetaToolUnionParam
from openai.types.responses import ResponseOutputItem, ToolParam
from pydantic import TypeAdapter

from gyre.proxy.dialects.anthropic import AnthropicMessages
from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.proxy.dialects.typed_tools import ANTHROPIC
from gyre.types.conversation import Message, Reply, ToolCall, Usage
from gyre.types.errors import RequestError

MESSAGES = AnthropicMessages()
RESPONSES = OpenAIResponses()
TYPED = [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
CALLS = {
    "local_shell": {"command": ["ls", "-l"], "working_directory": "/w", "timeout_ms": 9},
    "shell": {"commands": ["ls", "pwd"], "max_output_length": 100},
    "apply_patch": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
}
ITEM = TypeAdapter(ResponseOutputItem)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def types_of(union: Any) -> Iterator[str]:
    """The types that official clients know of tools."""
    for param in get_args(union):
        hint = get_type_hints(param).get("type")
        yield from (kind for kind in get_args(hint) if isinstance(kind, str))


def refused(dialect: Any, kinds: set[str]) -> set[str]:
    found = set()
    for kind in kinds:
        try:
            dialect.read_tools(raw([{"type": kind, "name": "x", "tools": []}]))
        except RequestError as error:
            found.add(str(error).split()[1])
    return found


def test_of_all_typed_tools_only_those_that_need_a_screen_are_refused():
    anthropic, openai = set(types_of(BetaToolUnionParam)), set(types_of(ToolParam))

    assert set(ANTHROPIC) <= anthropic
    assert {
        *("computer_20241022", "computer_20250124", "computer_20251124"),
        *("computer_toolset_20260801", "browser_toolset_20260801"),
    } == refused(MESSAGES, anthropic)
    assert {"computer", "computer_use_preview"} == refused(RESPONSES, openai)


def test_anthropics_client_tools_are_shown_under_their_own_names():
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
    ]
    bash, editor, earlier = MESSAGES.read_tools(raw(tools))

    assert {"command", "restart"} == set(json.loads(bash.parameters)["properties"])
    assert [tool["name"] for tool in tools] == [bash.name, editor.name, earlier.name]
    assert "insert_text" in json.loads(editor.parameters)["properties"]
    assert "undo_edit" in earlier.parameters
    assert "undo_edit" not in editor.parameters


def test_the_memory_tool_has_every_argument_that_anthropics_client_reads():
    commands = get_args(get_args(BetaMemoryTool20250818Command)[0])
    read = {name for command in commands for name in command.model_fields}

    assert "new_path" in read
    assert read == set(json.loads(ANTHROPIC["memory_20250818"].parameters)["properties"])


def split(**fields: object) -> Any:
    return RESPONSES.split(
        json.dumps({"model": "m", "input": [], "tools": TYPED} | fields).encode()
    )


def reply(name: str, arguments: str) -> Reply:
    return Reply(
        message=Message(
            role="assistant", calls=(ToolCall(id="call_1", name=name, arguments=arguments),)
        ),
        finish="tool_calls",
        usage=Usage(prompt_tokens=1, output_tokens=1),
        model="m",
        id="c1",
    )


def item_of(name: str, arguments: str) -> dict[str, Any]:
    (item,) = json.loads(RESPONSES.body([reply(name, arguments)], split()))["output"]
    return dict(item)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_typed_tool_has_its_own_item_and_comes_back(name: str):
    arguments = json.dumps(CALLS[name])
    item = item_of(name, arguments)

    assert (f"{name}_call", "call_1") == (item["type"], item["call_id"])
    assert item["type"] == ITEM.validate_python(item).type
    # Clients that write every field of their own types echo those that hold nothing.
    echoed = ITEM.validate_python(item).model_dump()
    (call,) = RESPONSES.read(raw(echoed))[0].calls
    assert ("call_1", name) == (call.id, call.name)
    assert CALLS[name] == json.loads(call.arguments)


@pytest.mark.parametrize("name", CALLS)
def test_a_stream_tells_of_a_typed_call_when_it_opens_and_when_it_is_whole(name: str):
    frames = RESPONSES.events([reply(name, json.dumps(CALLS[name]))], split())
    told = [json.loads(line[6:]) for line in frames.split(b"\n") if line.startswith(b"data: ")]
    opened, done = (
        next(event["item"] for event in told if event["type"] == f"response.output_item.{when}")
        for when in ("added", "done")
    )

    assert ("in_progress", "completed") == (opened["status"], done["status"])
    assert item_of(name, json.dumps(CALLS[name])) == done


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("local_shell", "ls -l"),
        ("local_shell", '{"command": "ls"}'),
        ("local_shell", '{"command": ["ls"], "env": {}}'),
        ("shell", '{"commands": ["ls"], "why": "to see"}'),
        ("apply_patch", '{"type": "update_file", "path": "a"}'),
        ("apply_patch", '{"type": "delete_file", "path": "a", "diff": "-a"}'),
    ],
)
def test_arguments_that_the_item_cannot_hold_come_as_a_functions(name: str, arguments: str):
    """So that nothing the policy wrote is lost on its way, and what comes back is the same."""
    item = item_of(name, arguments)

    assert ("function_call", name, arguments) == (item["type"], item["name"], item["arguments"])


def test_a_shell_in_a_container_is_a_servers():
    contained = {"type": "shell", "environment": {"type": "container_auto"}}
    local = {"type": "shell", "environment": {"type": "local"}}

    assert () == RESPONSES.read_tools(raw([contained]))
    assert ["shell"] == [tool.name for tool in RESPONSES.read_tools(raw([local]))]


OUTCOME = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "local_shell_call_output", "id": "call_1", "output": "a"}, "a"),
        ({"type": "local_shell_call_output", "call_id": "call_1", "output": "a"}, "a"),
        (
            {"type": "shell_call_output", "call_id": "call_1", "output": [OUTCOME]},
            json.dumps([OUTCOME], separators=(",", ":")),
        ),
        (
            {
                "type": "apply_patch_call_output",
                "call_id": "call_1",
                "status": "failed",
                "output": "no such file",
            },
            "failed\nno such file",
        ),
        (
            {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed"},
            "completed",
        ),
    ],
)
def test_the_output_of_a_typed_call_answers_it(item: dict[str, object], text: str):
    (message,) = RESPONSES.read(raw(item))

    assert ("tool", "call_1", text) == (message.role, message.answers, message.text)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "shell_call", "call_id": "c"}, "action: expected an object, got nothing"),
        (
            {"type": "local_shell_call", "call_id": "c", "action": {"command": 3}},
            "action.command: expected `array`, got `int`",
        ),
        ({"type": "shell_call_output", "output": []}, "call_id: expected a call's id, got nothing"),
    ],
)
def test_an_item_of_a_typed_call_that_cannot_be_read_is_refused(item: dict[str, object], said: str):
    with pytest.raises(RequestError) as refused:
        RESPONSES.read(raw(item))

    assert said == str(refused.value)
