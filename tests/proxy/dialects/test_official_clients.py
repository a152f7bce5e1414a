"""What the dialects write, judged by the official clients, and what those clients send back."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.responses import Response

from gyre.proxy.dialects.anthropic import AnthropicMessages
from gyre.proxy.dialects.base import Dialect
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.proxy.session.history import merge
from gyre.types.conversation import Message, Reply, ToolCall, Usage
from gyre.types.errors import ContextOverflow, NotFound, Overloaded, RequestError, Unauthorized

HELLO = {"role": "user", "content": "hello"}
MESSAGES = AnthropicMessages()
CHAT = OpenAIChat()
RESPONSES = OpenAIResponses()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Parrot"

    def do_POST(self) -> None:
        self.server.heard = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("content-type", self.server.kind)
        self.send_header("content-length", str(len(self.server.answer)))
        # No connection outlives a request, and so none outlives a test.
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *args: object) -> None:
        """Nothing: tests speak for themselves."""


class Parrot(HTTPServer):
    """Answers every POST with the bytes it was given last, and keeps what was sent."""

    status = 200
    kind = "application/json"
    answer = b"{}"
    heard = b""

    def says(self, answer: bytes, *, status: int = 200) -> None:
        self.answer, self.status, self.kind = answer, status, "application/json"

    def streams(self, answer: bytes) -> None:
        self.answer, self.status, self.kind = answer, 200, "text/event-stream"


@pytest.fixture(scope="module")
def parrot() -> Iterator[Parrot]:
    with Parrot(("127.0.0.1", 0), _Handler) as parrot:
        thread = threading.Thread(target=parrot.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield parrot
        finally:
            parrot.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def claude(parrot: Parrot) -> Iterator[anthropic.Anthropic]:
    url = f"http://127.0.0.1:{parrot.server_port}"
    with anthropic.Anthropic(api_key="k", base_url=url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def gpt(parrot: Parrot) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{parrot.server_port}/v1"
    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        yield client


def reply(**said: Any) -> Reply:
    finish = said.pop("finish", "tool_calls" if said.get("calls") else "stop")
    return Reply(
        message=Message(role="assistant", **said),
        finish=finish,
        usage=Usage(prompt_tokens=100, output_tokens=7, cached_tokens=60),
        model="policy",
        id=said.pop("id", "c1"),
    )


CALL = ToolCall(id="call_1", name="Bash", arguments='{"command": "ls"}')
OTHER = ToolCall(id="call_2", name="Read", arguments='{"path":"a","n":1}')
REPLIES = {
    "text": reply(text="hello"),
    "thinking": reply(text="hello", reasoning="hm"),
    "parallel calls": reply(reasoning="hm", calls=(CALL, OTHER)),
    "text and call": reply(text="look", calls=(CALL,)),
    "cut": reply(text="cut", finish="length"),
    "nothing": reply(),
}


def wire(dialect: Dialect, **fields: object) -> Any:
    empty = {"input": []} if dialect is RESPONSES else {"messages": []}
    return dialect.split(json.dumps({"model": "policy"} | empty | fields).encode())


# Anthropic Messages


def ask_claude(client: anthropic.Anthropic, parrot: Parrot, said: Reply, *, stream: bool) -> Any:
    sent = wire(MESSAGES)
    if stream:
        parrot.streams(MESSAGES.ping + MESSAGES.events([said], sent))
        with client.messages.stream(messages=[HELLO], model="policy", max_tokens=9) as events:
            return events.get_final_message()
    parrot.says(MESSAGES.body([said], sent))
    return client.messages.create(messages=[HELLO], model="policy", max_tokens=9)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "stop_reason", "kinds"),
    [
        ("text", "end_turn", ["text"]),
        ("thinking", "end_turn", ["thinking", "text"]),
        ("parallel calls", "tool_use", ["thinking", "tool_use", "tool_use"]),
        ("text and call", "tool_use", ["text", "tool_use"]),
        ("cut", "max_tokens", ["text"]),
        ("nothing", "end_turn", []),
    ],
)
def test_anthropics_client_reads_a_reply(
    claude: Any, parrot: Parrot, name: str, stop_reason: str, kinds: list[str], stream: bool
):
    """T30: a stream says what a whole body says."""
    message = ask_claude(claude, parrot, REPLIES[name], stream=stream)

    anthropic.types.Message.model_validate(message.to_dict(), strict=True)
    assert ("msg_c1", "policy", stop_reason) == (message.id, message.model, message.stop_reason)
    assert kinds == [block.type for block in message.content]
    assert (40, 60, 0, 7) == (
        message.usage.input_tokens,
        message.usage.cache_read_input_tokens,
        message.usage.cache_creation_input_tokens,
        message.usage.output_tokens,
    )


# OpenAI Chat Completions


def ask_chat(client: openai.OpenAI, parrot: Parrot, said: Reply, *, stream: bool) -> Any:
    if stream:
        counted = {"include_usage": True}
        sent = wire(CHAT, stream_options=counted)
        parrot.streams(CHAT.ping + CHAT.events([said], sent))
        with client.chat.completions.stream(
            messages=[HELLO], model="policy", stream_options=counted
        ) as events:
            return events.get_final_completion()
    parrot.says(CHAT.body([said], wire(CHAT)))
    return client.chat.completions.create(messages=[HELLO], model="policy")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "finish_reason"),
    [
        ("text", "stop"),
        ("thinking", "stop"),
        ("parallel calls", "tool_calls"),
        ("text and call", "tool_calls"),
        ("nothing", "stop"),
    ],
)
def test_openais_client_reads_a_chat_reply(
    gpt: Any, parrot: Parrot, name: str, finish_reason: str, stream: bool
):
    """T30: a stream says what a whole body says."""
    said = REPLIES[name].message
    completion = ask_chat(gpt, parrot, REPLIES[name], stream=stream)

    ChatCompletion.model_validate(completion.to_dict())
    (choice,) = completion.choices
    assert ("chatcmpl-c1", "policy") == (completion.id, completion.model)
    assert finish_reason == choice.finish_reason
    assert said.text == (choice.message.content or "")
    assert said.reasoning == getattr(choice.message, "reasoning_content", None)
    assert list(said.calls) == [
        ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in choice.message.tool_calls or ()
    ]
    assert (100, 7, 107, 60) == (
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
        completion.usage.total_tokens,
        completion.usage.prompt_tokens_details.cached_tokens,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_reads_a_chat_reply_that_was_cut(gpt: Any, parrot: Parrot, stream: bool):
    cut = REPLIES["cut"]
    if stream:
        parrot.streams(CHAT.events([cut], wire(CHAT)))
        chunks = gpt.chat.completions.create(messages=[HELLO], model="policy", stream=True)
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    else:
        parrot.says(CHAT.body([cut], wire(CHAT)))
        completion = gpt.chat.completions.create(messages=[HELLO], model="policy")
        reasons = [choice.finish_reason for choice in completion.choices]

    assert "length" == reasons[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_reads_several_choices(gpt: Any, parrot: Parrot, stream: bool):
    """T29: one reply per choice, the prompt counted once."""
    replies = [reply(text="a"), reply(text="b"), reply(calls=(CALL,))]
    counted = {"include_usage": True}
    if stream:
        parrot.streams(CHAT.events(replies, wire(CHAT, n=3, stream_options=counted)))
        with gpt.chat.completions.stream(
            messages=[HELLO], model="policy", n=3, stream_options=counted
        ) as events:
            completion = events.get_final_completion()
    else:
        parrot.says(CHAT.body(replies, wire(CHAT, n=3)))
        completion = gpt.chat.completions.create(messages=[HELLO], model="policy", n=3)

    assert [0, 1, 2] == [choice.index for choice in completion.choices]
    assert ["a", "b", None] == [choice.message.content for choice in completion.choices]
    assert (100, 21, 121) == (
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
        completion.usage.total_tokens,
    )


# OpenAI Responses


def ask_responses(client: openai.OpenAI, parrot: Parrot, said: Reply, *, stream: bool) -> Any:
    if stream:
        parrot.streams(RESPONSES.ping + RESPONSES.events([said], wire(RESPONSES)))
        events = list(client.responses.create(input="hello", model="policy", stream=True))
        return events[-1].response
    parrot.says(RESPONSES.body([said], wire(RESPONSES)))
    return client.responses.create(input="hello", model="policy")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "status", "kinds"),
    [
        ("text", "completed", ["message"]),
        ("thinking", "completed", ["reasoning", "message"]),
        ("parallel calls", "completed", ["reasoning", "function_call", "function_call"]),
        ("text and call", "completed", ["message", "function_call"]),
        ("cut", "incomplete", ["message"]),
        ("nothing", "completed", []),
    ],
)
def test_openais_client_reads_a_response(
    gpt: Any, parrot: Parrot, name: str, status: str, kinds: list[str], stream: bool
):
    """T30: a stream says what a whole body says."""
    response = ask_responses(gpt, parrot, REPLIES[name], stream=stream)

    Response.model_validate(response.to_dict())
    assert ("resp_c1", "policy", status) == (response.id, response.model, response.status)
    assert kinds == [item.type for item in response.output]
    assert REPLIES[name].message.text == response.output_text
    assert (100, 60, 7, 107) == (
        response.usage.input_tokens,
        response.usage.input_tokens_details.cached_tokens,
        response.usage.output_tokens,
        response.usage.total_tokens,
    )
    cut = response.incomplete_details
    assert ("max_output_tokens" if status == "incomplete" else None) == (cut and cut.reason)


@pytest.mark.parametrize("name", [name for name in REPLIES if name != "cut"])
def test_openais_client_builds_a_response_out_of_its_events(gpt: Any, parrot: Parrot, name: str):
    """The accumulating client checks that parts arrive in order and agree with the whole."""
    parrot.streams(RESPONSES.events([REPLIES[name]], wire(RESPONSES)))
    with gpt.responses.stream(input="hello", model="policy") as stream:
        events = list(stream)
        response = stream.get_final_response()

    whole = json.loads(RESPONSES.body([REPLIES[name]], wire(RESPONSES)))
    assert list(range(len(events))) == [event.sequence_number for event in events]
    assert [item["type"] for item in whole["output"]] == [item.type for item in response.output]
    assert REPLIES[name].message.text == response.output_text


# Round trips

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=3), max_leaves=8
)
CALLS = st.builds(
    ToolCall,
    id=st.uuids().map(lambda number: f"call_{number.hex}"),
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
FREELY = st.builds(replace, CALLS, arguments=TEXTS)
"""Calls whose arguments need not be JSON."""
SAID_FREELY = st.builds(replace, SAID, calls=st.lists(FREELY, max_size=2).map(tuple))


def echo_claude(client: Any, parrot: Parrot, answer: Any) -> Message:
    if not answer.content:
        return Message(role="assistant")
    history = [HELLO, {"role": "assistant", "content": answer.content}, HELLO]
    client.messages.create(messages=history, model="policy", max_tokens=9)
    (heard,) = MESSAGES.read(MESSAGES.split(parrot.heard).messages[1])
    return heard


def echo_chat(client: Any, parrot: Parrot, answer: Any) -> Message:
    message: ChatCompletionMessage = answer.choices[0].message
    history = [HELLO, message.to_dict(), HELLO]
    client.chat.completions.create(messages=history, model="policy")
    (heard,) = CHAT.read(CHAT.split(parrot.heard).messages[1])
    return heard


def echo_responses(client: Any, parrot: Parrot, answer: Any) -> Message:
    history = [HELLO, *(item.to_dict() for item in answer.output), HELLO]
    client.responses.create(input=history, model="policy")
    items = RESPONSES.split(parrot.heard).messages[1:-1]
    pieces = [piece for item in items for piece in RESPONSES.read(item)]
    return merge(pieces) if pieces else Message(role="assistant")


def come_back(
    ask: Callable[..., Any],
    echo: Callable[..., Message],
    client: object,
    parrot: Parrot,
    message: Message,
    *,
    stream: bool,
) -> Message:
    """The message as it reads in the history of the client's next request."""
    return echo(
        client, parrot, ask(client, parrot, replace(reply(), message=message), stream=stream)
    )


def payloads(message: Message) -> list[tuple[str, str, object]]:
    return [(call.id, call.name, json.loads(call.arguments)) for call in message.calls]


@settings(max_examples=50)
@given(message=SAID, stream=st.booleans())
def test_a_reply_comes_back_from_anthropics_client(
    claude: Any, parrot: Parrot, message: Message, stream: bool
):
    """T22: what a client echoes reads as what was returned; blank text reads as none."""
    heard = come_back(ask_claude, echo_claude, claude, parrot, message, stream=stream)

    assert message.reasoning == heard.reasoning
    assert (message.text if message.text.strip() else "") == heard.text
    assert payloads(message) == payloads(heard)


@settings(max_examples=50)
@given(message=SAID_FREELY, stream=st.booleans())
def test_a_reply_comes_back_from_openais_chat_client(
    gpt: Any, parrot: Parrot, message: Message, stream: bool
):
    """T22: byte for byte, arguments that are no JSON included."""
    heard = come_back(ask_chat, echo_chat, gpt, parrot, message, stream=stream)

    assert message == heard


@settings(max_examples=50)
@given(message=SAID_FREELY, stream=st.booleans())
def test_a_reply_comes_back_from_openais_responses_client(
    gpt: Any, parrot: Parrot, message: Message, stream: bool
):
    """T22: byte for byte, once the items of the turn are one message again."""
    heard = come_back(ask_responses, echo_responses, gpt, parrot, message, stream=stream)

    assert message == heard


# Errors

ERRORS = [
    RequestError("bad", where="messages[3].content[0]"),
    Unauthorized("no"),
    NotFound("no"),
    Overloaded("later", retry_after_s=1),
    ContextOverflow(prompt_tokens=9, max_tokens=8),
]


@pytest.mark.parametrize("error", ERRORS)
def test_anthropics_client_raises_what_the_status_says(
    claude: Any, parrot: Parrot, error: RequestError
):
    parrot.says(MESSAGES.error(error), status=error.status)
    with pytest.raises(anthropic.APIStatusError) as refused:
        claude.messages.create(messages=[HELLO], model="policy", max_tokens=9)

    assert error.status == refused.value.status_code
    assert str(error) in refused.value.message


@pytest.mark.parametrize("error", ERRORS)
def test_openais_client_raises_what_the_status_says(gpt: Any, parrot: Parrot, error: RequestError):
    parrot.says(CHAT.error(error), status=error.status)
    with pytest.raises(openai.APIStatusError) as refused:
        gpt.chat.completions.create(messages=[HELLO], model="policy")

    told = json.loads(CHAT.error(error))["error"]
    assert error.status == refused.value.status_code
    assert (told["code"], told["type"]) == (refused.value.code, refused.value.type)
    assert told["message"] in refused.value.message


@pytest.mark.parametrize("error", ERRORS)
def test_anthropics_client_raises_an_error_that_ends_a_stream(
    claude: Any, parrot: Parrot, error: RequestError
):
    parrot.streams(MESSAGES.ping + MESSAGES.error_event(error))
    with (
        pytest.raises(anthropic.APIStatusError) as refused,
        claude.messages.stream(messages=[HELLO], model="policy", max_tokens=9) as events,
    ):
        events.get_final_message()

    assert json.loads(MESSAGES.error(error)) == refused.value.body


@pytest.mark.parametrize("error", ERRORS)
def test_openais_client_raises_an_error_that_ends_a_chat_stream(
    gpt: Any, parrot: Parrot, error: RequestError
):
    parrot.streams(CHAT.ping + CHAT.error_event(error))
    with pytest.raises(openai.APIError) as refused:
        list(gpt.chat.completions.create(messages=[HELLO], model="policy", stream=True))

    assert json.loads(CHAT.error(error))["error"]["message"] == refused.value.message


@pytest.mark.parametrize(
    ("error", "code"),
    list(
        zip(
            ERRORS,
            [
                "invalid_prompt",
                "invalid_api_key",
                "not_found",
                "rate_limit_exceeded",
                "context_length_exceeded",
            ],
            strict=True,
        )
    ),
)
def test_openais_client_reads_that_a_response_failed(
    gpt: Any, parrot: Parrot, error: RequestError, code: str
):
    parrot.streams(RESPONSES.ping + RESPONSES.error_event(error))
    *_, last = gpt.responses.create(input="hello", model="policy", stream=True)

    assert ("response.failed", "failed") == (last.type, last.response.status)
    assert code == last.response.error.code
    assert json.loads(RESPONSES.error(error))["error"]["message"] == last.response.error.message
