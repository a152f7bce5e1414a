"""The model `tiny` behind `gyre proxy` and `gyre serve`: tools are called in every dialect."""

import json

import anthropic
import openai
import pytest
from tests.inference.support.serving import ServeProcess
from tests.waiting import PATIENCE_S

from gyre.model.registry import model_folder
from gyre.storage.call_log import logs, read
from gyre.testing.processes import StandaloneProxy
from gyre.trajectory.tree import grow

NAMES = ("find_path", "read", "check_table", "open_file", "count", "send_note")
REQUEST = "find this path."
ABOUT = "look here."
CHOICES = ["1", "2", "3"]
SCHEMA = {
    "type": "object",
    "properties": {"key": {"type": "string", "enum": CHOICES}},
    "required": ["key"],
}
COMMON = {"model": "any", "timeout": PATIENCE_S}


@pytest.fixture(scope="module")
def server():
    with ServeProcess("tiny", "--device", "cpu", "--seed", "0") as server:
        yield server


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, server):
    """Greedy, so that one reply says what the model says."""
    with StandaloneProxy(
        tmp_path_factory.mktemp("proxy") / "run",
        model=model_folder("tiny"),
        engines=[server.url],
        options=("--context", "1024", "--max-tokens", "64", "--temperature", "0"),
    ) as proxy:
        yield proxy


def openai_client(execution):
    return openai.OpenAI(base_url=f"{execution.url}/v1", api_key=execution.key, max_retries=0)


def chat(execution, name):
    function = {"name": name, "description": ABOUT, "parameters": SCHEMA}
    with openai_client(execution) as client:
        done = client.chat.completions.create(
            messages=[{"role": "user", "content": REQUEST}],
            tools=[{"type": "function", "function": function}],
            **COMMON,
        )
    calls = [call.function for call in done.choices[0].message.tool_calls or []]
    return [(call.name, json.loads(call.arguments)) for call in calls]


def responses(execution, name):
    tool = {"type": "function", "name": name, "description": ABOUT, "parameters": SCHEMA}
    with openai_client(execution) as client:
        done = client.responses.create(input=REQUEST, tools=[tool | {"strict": False}], **COMMON)
    calls = [item for item in done.output if item.type == "function_call"]
    return [(call.name, json.loads(call.arguments)) for call in calls]


def messages(execution, name):
    with anthropic.Anthropic(
        base_url=execution.url, auth_token=execution.key, api_key=None, max_retries=0
    ) as client:
        done = client.messages.create(
            messages=[{"role": "user", "content": REQUEST}],
            tools=[{"name": name, "description": ABOUT, "input_schema": SCHEMA}],
            max_tokens=64,
            **COMMON,
        )
    calls = [block for block in done.content if block.type == "tool_use"]
    return [(call.name, call.input) for call in calls]


@pytest.mark.parametrize("ask", [chat, responses, messages])
def test_a_tool_that_is_sent_as_an_object_is_called(proxy, ask):
    execution = proxy.open(ask.__name__)
    called = {name: ask(execution, name) for name in NAMES}
    right = [
        name
        for name, calls in called.items()
        if [name] == [one for one, _ in calls] and {"key"} == set(calls[0][1])
    ]

    assert len(right) >= len(NAMES) - 1, called


def test_every_dialect_renders_the_same_prompt(proxy):
    for number, ask in enumerate((chat, responses, messages)):
        ask(proxy.open(f"x{number}"), NAMES[0])
    paths = [path for path in logs(proxy.folder) if path.stem.startswith("x")]
    trees = [grow(read(path).records) for path in paths]
    prompts = [tree.prompt_ids(1).tolist() for tree in trees]

    assert 3 == len(prompts)
    assert prompts[0] == prompts[1] == prompts[2]
