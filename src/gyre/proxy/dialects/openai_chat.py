"""OpenAI Chat Completions: requests become conversations, replies become choices or chunks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from gyre.net import sse
from gyre.proxy.dialects import base
from gyre.proxy.dialects.base import ParsedRequest
from gyre.types.call_records import Evidence
from gyre.types.conversation import Finish, Message, Reply, Tool, ToolCall
from gyre.types.errors import ContextOverflow, RequestError

_FINISH_REASONS: Mapping[Finish, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    # No harness should read this one; if one does, the reply was cut.
    "abort": "length",
}
_ERROR_TYPES: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    529: ("server_error", None),
}
_SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "n",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
)
_TEXT_PARTS = frozenset({"text"})


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str
    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    max_tokens: base.Count | None = None
    max_completion_tokens: base.Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: base.Integer | None = None
    min_p: float | None = None
    seed: base.Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    tool_choice: msgspec.Raw = msgspec.Raw()
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    response_format: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    role: str
    content: str | list[base.Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()


class _Tool(msgspec.Struct):
    type: str
    function: _ToolFunction | None = None


_BODY = msgspec.json.Decoder(_Body)
_MESSAGE = msgspec.json.Decoder(_Message)
_TOOLS = msgspec.json.Decoder(list[_Tool])
_OBJECT = msgspec.json.Decoder(dict[str, object])
_ENCODER = msgspec.json.Encoder()


class OpenAIChat:
    """OpenAI Chat Completions (SPEC 4.6)."""

    name = "chat"
    conversation = "messages"
    coalesces = False
    # A comment: chunks have no type, so that any chunk means something to some client.
    ping = b": ping\n\n"

    def split(self, body: bytes) -> ParsedRequest:
        sent = base.decode_body(_BODY, body)
        named = base.settings(sent, ("user", "prompt_cache_key", "safety_identifier"))
        longest = sent.max_completion_tokens
        return ParsedRequest(
            model=sent.model,
            stream=sent.stream is True,
            system=None,
            messages=sent.messages,
            tools=base.present(sent.tools),
            max_tokens=sent.max_tokens if longest is None else longest,
            choices=1 if sent.n is None else sent.n,
            include_usage=sent.stream_options is not None
            and sent.stream_options.include_usage is True,
            template=_template(sent.chat_template_kwargs),
            asked=base.settings(sent, _SETTINGS),
            metadata=base.flatten(sent.metadata, "metadata")
            | {key: str(value) for key, value in named.items()},
            stop=(sent.stop,) if isinstance(sent.stop, str) else tuple(sent.stop or ()),
        )

    def read_system(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        """Nothing: this dialect's system text is one of its messages."""
        return ()

    def read(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        sent = base.decode(_MESSAGE, raw)
        texts = base.texts_of(sent.content, "content", kinds=_TEXT_PARTS)
        match sent.role:
            case "system" | "developer":
                return (Message(role="system", text="\n".join(texts)),)
            case "user":
                return (Message(role="user", text="\n".join(texts)),)
            case "assistant":
                return (_read_assistant(sent, "".join(texts)),)
            case "tool":
                call = base.require(sent.tool_call_id, "tool_call_id", "a call's id")
                text = "\n".join(texts)
                return (Message(role="tool", text=text, answers=call, name=sent.name),)
            case other:
                known = "system, developer, user, assistant or tool"
                raise RequestError(f"expected {known}, got {other[:40]!r}", where="role")

    def read_tools(self, raw: msgspec.Raw) -> tuple[Tool, ...]:
        return tuple(
            Tool(
                name=function.name,
                description=function.description or "",
                parameters=base.schema_of(
                    function.parameters, f"tools[{index}].function.parameters"
                ),
            )
            for index, function in enumerate(_functions(raw))
        )

    def evidence(self, wire: ParsedRequest, headers: Mapping[str, str]) -> Evidence:
        tools = () if wire.tools is None else _functions(wire.tools)
        return Evidence(
            dialect=self.name,
            headers=base.harmless(headers),
            metadata=wire.metadata,
            system=base.opening(_first_system(wire.messages)),
            tools=tuple(function.name for function in tools),
            last_user=base.last_user(wire.messages, "messages"),
            num_messages=len(wire.messages),
        )

    def body(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        choices = [
            {
                "index": index,
                "message": _written(reply.message),
                "logprobs": None,
                "finish_reason": _FINISH_REASONS[reply.finish],
            }
            for index, reply in enumerate(replies)
        ]
        envelope = _envelope(replies[0], "chat.completion")
        return _ENCODER.encode(envelope | {"choices": choices, "usage": _usage(replies)})

    def events(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        envelope = _envelope(replies[0], "chat.completion.chunk")
        # Every chunk but the last says null, where the counts were asked for.
        unknown: dict[str, object] = {"usage": None} if wire.include_usage else {}
        frames = [
            sse.unnamed(envelope | {"choices": [choice]} | unknown)
            for index, reply in enumerate(replies)
            for choice in _deltas(index, reply)
        ]
        if wire.include_usage:
            frames.append(sse.unnamed(envelope | {"choices": [], "usage": _usage(replies)}))
        return b"".join([*frames, b"data: [DONE]\n\n"])

    def error(self, error: RequestError) -> bytes:
        return _ENCODER.encode({"error": error_body(error, param="messages")})

    def error_event(self, error: RequestError) -> bytes:
        return sse.unnamed({"error": error_body(error, param="messages")})


def error_body(error: RequestError, *, param: str) -> dict[str, str | None]:
    """An error in OpenAI's words; `param` is where an overlong conversation was sent."""
    kind, code = _ERROR_TYPES.get(
        error.status, ("server_error" if error.status >= 500 else "invalid_request_error", None)
    )
    if not isinstance(error, ContextOverflow):
        return {"message": str(error), "type": kind, "param": None, "code": code}
    # Clients look for this code and these words.
    message = (
        f"This model's maximum context length is {error.max_tokens} tokens. However, your "
        f"messages resulted in {error.prompt_tokens} tokens. "
        "Please reduce the length of the messages."
    )
    return {"message": message, "type": kind, "param": param, "code": "context_length_exceeded"}


def _template(raw: msgspec.Raw) -> str:
    """The same text for the same settings, in any order (M02)."""
    sent = base.present(raw)
    if sent is None:
        return ""
    value = base.decode(_OBJECT, sent, "chat_template_kwargs")
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""
    except RecursionError as error:
        raise RequestError("nested too deeply", where="chat_template_kwargs") from error


def _read_assistant(sent: _Message, text: str) -> Message:
    reasoning = sent.reasoning if sent.reasoning_content is None else sent.reasoning_content
    calls = tuple(
        ToolCall(
            id=call.id,
            name=call.function.name,
            arguments=base.text_of(
                call.function.arguments, f"tool_calls[{index}].function.arguments"
            ),
        )
        for index, call in enumerate(sent.tool_calls or ())
    )
    return Message(role="assistant", text=text, reasoning=reasoning, calls=calls)


def _functions(raw: msgspec.Raw) -> list[_ToolFunction]:
    functions = []
    tools = base.decode(_TOOLS, raw, "tools")
    for index, tool in enumerate(tools):
        if tool.type != "function":
            kind = tool.type[:40]
            raise RequestError(
                f"{kind} tools are not supported; expected function", where=f"tools[{index}]"
            )
        where = f"tools[{index}].function"
        functions.append(base.require(tool.function, where, "a function"))
    return functions


def _first_system(messages: Sequence[msgspec.Raw]) -> str:
    """The first message's text, if the system or its developer said it."""
    if not messages:
        return ""
    sent = base.decode(_MESSAGE, messages[0], "messages[0]")
    if sent.role not in ("system", "developer"):
        return ""
    return "\n".join(base.texts_of(sent.content, "messages[0].content", kinds=_TEXT_PARTS))


def _envelope(reply: Reply, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": kind,
        "created": int(reply.at),
        "model": reply.model,
    }


def _usage(replies: Sequence[Reply]) -> dict[str, object]:
    """The prompt once, and the outputs of all choices."""
    prompt = replies[0].usage
    output_tokens = sum(reply.usage.output_tokens for reply in replies)
    return {
        "prompt_tokens": prompt.prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt.prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": prompt.cached_tokens},
    }


def _content(message: Message) -> str | None:
    return None if message.calls and not message.text else message.text


def _calls(message: Message) -> list[dict[str, object]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.calls
    ]


def _written(message: Message) -> dict[str, object]:
    written: dict[str, object] = {"role": "assistant", "content": _content(message)}
    if message.reasoning:
        written["reasoning_content"] = message.reasoning
    if message.calls:
        written["tool_calls"] = _calls(message)
    return written


def _deltas(index: int, reply: Reply) -> Iterator[dict[str, object]]:
    """The choices of one reply's chunks: role, thinking, text, each call, and the end."""
    message = reply.message
    content = _content(message)

    def choice(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

    yield choice({"role": "assistant", "content": None if content is None else ""})
    if message.reasoning:
        yield choice({"reasoning_content": message.reasoning})
    if content:
        yield choice({"content": content})
    for position, call in enumerate(_calls(message)):
        yield choice({"tool_calls": [{"index": position} | call]})
    yield choice({}, _FINISH_REASONS[reply.finish])
