"""The official clients through the whole proxy, streaming and not, token for token."""

import anthropic
import openai
import pytest

from gyre.storage.call_log import logs, read
from gyre.trajectory.tree import grow
from gyre.types.call_records import CallClosed

TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}


def check(stage, engine, *, calls):
    """One chain without forks whose every prompt is what the engine was sent."""
    tree = grow(read(next(logs(stage.folder / "run"))).records)
    asks = [ask.input_ids for ask in engine.asks()]

    assert calls == len(tree.calls)
    assert {None} == {node.fork for node in tree.calls.values()}
    assert [None, *range(1, calls)] == [node.parent for node in tree.calls.values()]
    assert 1 == len(tree.leaves())
    assert asks == [tree.prompt_ids(call).tolist() for call in tree.calls]
    return tree


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(stage, stream):
    """T30: the same ids whether the reply is streamed or not."""
    engine = stage.engine()
    proxy = stage.proxy(engine)
    execution = proxy.open("x")
    client = stage.client(
        anthropic.Anthropic(base_url=execution.url, auth_token=execution.key, api_key=None)
    )
    tools = [{"name": "run", "description": "runs", "input_schema": TOOL}]
    history = [{"role": "user", "content": "begin"}]
    for turn in range(4):
        asked = {"model": "claude-any", "max_tokens": 900, "messages": history, "tools": tools}
        if stream:
            with client.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**asked)
        thinking, text, call = message.content
        assert "go on" == thinking.thinking
        assert text.text.startswith(f"step {turn}: ")
        assert {"command": f"step {turn}"} == call.input
        assert "tool_use" == message.stop_reason
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
        echo = [block.model_dump(exclude_none=True) for block in message.content]
        history += [{"role": "assistant", "content": echo}, {"role": "user", "content": [result]}]

    tree = check(stage, engine, calls=4)
    counted = client.messages.count_tokens(model="m", messages=history[:-2], tools=tools)
    assert len(tree.prompt_ids(4)) == counted.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_openai_chat(stage, stream):
    engine = stage.engine(wire="vllm")
    proxy = stage.proxy(engine)
    execution = proxy.open("x")
    client = stage.client(openai.OpenAI(base_url=f"{execution.url}/v1", api_key=execution.key))
    function = {"name": "run", "description": "runs", "parameters": TOOL}
    tools = [{"type": "function", "function": function}]
    history = [{"role": "user", "content": "begin"}]
    for turn in range(4):
        asked = {"model": "gpt-any", "messages": history, "tools": tools}
        if stream:
            with client.chat.completions.stream(
                **asked, stream_options={"include_usage": True}
            ) as events:
                for _ in events:
                    pass
                done = events.get_final_completion()
        else:
            done = client.chat.completions.create(**asked)
        message = done.choices[0].message
        assert message.content.startswith(f"step {turn}: ")
        assert "tool_calls" == done.choices[0].finish_reason
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
        echo = message.model_dump(exclude_none=True, exclude={"parsed", "parsed_arguments"})
        for call in echo["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}
        history += [echo, result]

    check(stage, engine, calls=4)


@pytest.mark.parametrize("stream", [False, True])
def test_openai_responses(stage, stream):
    engine = stage.engine()
    proxy = stage.proxy(engine)
    execution = proxy.open("x")
    client = stage.client(openai.OpenAI(base_url=f"{execution.url}/v1", api_key=execution.key))
    tools = [{"type": "function", "name": "run", "parameters": TOOL, "strict": False}]
    history = [{"role": "user", "content": "begin"}]
    for turn in range(4):
        asked = {"model": "gpt-any", "input": history, "tools": tools}
        if stream:
            events = list(client.responses.create(**asked, stream=True))
            assert "response.created" == events[0].type
            done = events[-1].response
        else:
            done = client.responses.create(**asked)
        reasoning, message, call = done.output
        assert "reasoning" == reasoning.type
        assert message.content[0].text.startswith(f"step {turn}: ")
        history += [item.model_dump(exclude_none=True) for item in done.output]
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "done"})

    check(stage, engine, calls=4)


def test_what_identifies_the_caller_is_recorded_and_its_key_is_not(stage):
    """SPEC 4.1: the request's metadata, from the body and from headers."""
    proxy = stage.proxy(stage.engine())
    execution = proxy.open("x")
    client = stage.client(
        anthropic.Anthropic(base_url=execution.url, auth_token=execution.key, api_key=None)
    )
    client.messages.create(
        model="m",
        max_tokens=50,
        messages=[{"role": "user", "content": "hi"}],
        metadata={"user_id": '{"session_id": "s-1"}'},
        extra_headers={"x-claude-code-agent-id": "a-7", "x-other": "no"},
    )
    (closed,) = (
        record
        for record in read(next(logs(stage.folder / "run"))).records
        if isinstance(record, CallClosed)
    )

    assert "s-1" == closed.metadata["session_id"]
    assert "a-7" == closed.metadata["x-claude-code-agent-id"]
    assert "nthropic" in closed.metadata["user-agent"]
    assert "x-other" not in closed.metadata
    assert execution.key not in str(closed)


def test_a_full_window_is_told_in_each_dialect(stage):
    """SPEC 4.6: a refusal has its status; the words are those that agent programs look for."""
    proxy = stage.proxy(stage.engine(), options=("--context", "64"))
    execution = proxy.open("x")
    long = [{"role": "user", "content": "word " * 200}]
    claude = stage.client(
        anthropic.Anthropic(base_url=execution.url, auth_token=execution.key, api_key=None)
    )
    chat = stage.client(openai.OpenAI(base_url=f"{execution.url}/v1", api_key=execution.key))

    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 64 max"):
        claude.messages.create(model="m", max_tokens=100, messages=long)
    with pytest.raises(openai.BadRequestError) as refused:
        chat.chat.completions.create(model="m", messages=long)
    assert "context_length_exceeded" == refused.value.code
    with pytest.raises(openai.BadRequestError) as refused:
        chat.responses.create(model="m", input="word " * 200)
    assert "context_length_exceeded" == refused.value.code
    assert 1 == len(read(next(logs(stage.folder / "run"))).records)


def test_several_choices_in_one_answer(stage):
    """T29: n replies, n siblings, also when the engine has room for only one at a time."""
    engine = stage.engine()
    proxy = stage.proxy(engine, options=("--capacity", "1"))
    execution = proxy.open("x")
    client = stage.client(openai.OpenAI(base_url=f"{execution.url}/v1", api_key=execution.key))
    done = client.chat.completions.create(
        model="m", n=3, messages=[{"role": "user", "content": "begin"}]
    )
    tree = grow(read(next(logs(stage.folder / "run"))).records)

    assert [0, 1, 2] == [choice.index for choice in done.choices]
    assert [None, None, None] == [node.parent for node in tree.calls.values()]
    assert 3 == len({choice.message.tool_calls[0].id for choice in done.choices})
