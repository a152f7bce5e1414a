"""Anthropic Messages: requests become conversations, replies become messages or their events."""

from collections.abc import Mapping, Sequence

import msgspec
import xxhash

from gyre.net import sse
from gyre.proxy.dialects import base
from gyre.proxy.dialects.base import ParsedRequest
from gyre.types.call_records import Evidence
from gyre.types.conversation import Finish, Message, Reply, Tool, ToolCall, Usage
from gyre.types.errors import RequestError

_BILLING = "x-anthropic-billing-header:"
_RAW_ARGUMENTS = "__raw_arguments"
"""Key under which arguments travel that are no JSON object, where the format demands one."""

_STOP_REASONS: Mapping[Finish, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    # No harness should read this one; if one does, the reply was cut.
    "abort": "max_tokens",
}
_ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_SETTINGS = ("temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "thinking")


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Body(msgspec.Struct):
    model: str
    messages: list[msgspec.Raw]
    system: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    max_tokens: base.Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: base.Integer | None = None
    stop_sequences: list[str] | None = None
    thinking: msgspec.Raw = msgspec.Raw()
    tool_choice: msgspec.Raw = msgspec.Raw()
    metadata: _Metadata | None = None


class _Block(msgspec.Struct):
    """A content block of any type; what a type needs is asked for when it is read."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: "str | list[_Block] | None" = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block] | None = None


class _Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.Raw()


_BODY = msgspec.json.Decoder(_Body)
_MESSAGE = msgspec.json.Decoder(_Message)
_SYSTEM = msgspec.json.Decoder(str | list[_Block])
_TOOLS = msgspec.json.Decoder(list[_Tool])
_ENCODER = msgspec.json.Encoder()


class AnthropicMessages:
    """Anthropic Messages (SPEC 4.6)."""

    name = "messages"
    conversation = "messages"
    coalesces = False
    ping = sse.named("ping", {"type": "ping"})

    def split(self, body: bytes) -> ParsedRequest:
        sent = base.decode_body(_BODY, body)
        return ParsedRequest(
            model=sent.model,
            stream=sent.stream is True,
            system=base.present(sent.system),
            messages=sent.messages,
            tools=base.present(sent.tools),
            max_tokens=sent.max_tokens,
            asked=base.settings(sent, (*_SETTINGS, "tool_choice")),
            metadata=_metadata(sent.metadata),
            stop=tuple(sent.stop_sequences or ()),
        )

    def read_system(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        texts = (_without_billing(text) for text in _system_texts(raw))
        text = "\n".join(text for text in texts if text is not None)
        return (Message(role="system", text=text),) if text else ()

    def read(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        sent = base.decode(_MESSAGE, raw)
        blocks = _blocks(sent.content)
        match sent.role:
            case "user":
                return tuple(_read_user(blocks))
            case "assistant":
                return (_read_assistant(blocks),)
            case "system":
                return (Message(role="system", text="\n".join(_texts(blocks, "content"))),)
            case other:
                raise RequestError(
                    f"expected user, assistant or system, got {other[:40]!r}", where="role"
                )

    def read_tools(self, raw: msgspec.Raw) -> tuple[Tool, ...]:
        return tuple(
            Tool(
                name=tool.name,
                description=tool.description or "",
                parameters=base.schema_of(tool.input_schema, f"tools[{index}].input_schema"),
            )
            for index, tool in enumerate(_tools(raw))
            if _is_client_tool(tool)
        )

    def evidence(self, wire: ParsedRequest, headers: Mapping[str, str]) -> Evidence:
        tools = [] if wire.tools is None else _tools(wire.tools)
        system = () if wire.system is None else _system_texts(wire.system)
        return Evidence(
            dialect=self.name,
            headers=base.harmless(headers),
            metadata=wire.metadata,
            system=base.opening("\n".join(system)),
            tools=tuple(tool.name for tool in tools if _is_client_tool(tool)),
            last_user=base.last_user(wire.messages, "messages"),
            num_messages=len(wire.messages),
        )

    def body(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        reply = replies[0]
        return _ENCODER.encode(
            _envelope(reply)
            | {
                "content": [_inlined(block) for block in _written(reply.message)],
                "stop_reason": _STOP_REASONS[reply.finish],
                "usage": _usage(reply.usage),
            }
        )

    def events(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        reply = replies[0]
        usage = _usage(reply.usage)
        start = _envelope(reply) | {"usage": usage | {"output_tokens": 0}}
        frames = [sse.named("message_start", {"type": "message_start", "message": start})]
        for index, block in enumerate(_written(reply.message)):
            frames += _block_frames(index, block)
        delta = {"stop_reason": _STOP_REASONS[reply.finish], "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": usage}
        frames += [
            sse.named("message_delta", end),
            sse.named("message_stop", {"type": "message_stop"}),
        ]
        return b"".join(frames)

    def error(self, error: RequestError) -> bytes:
        return _ENCODER.encode(_error(error))

    def error_event(self, error: RequestError) -> bytes:
        return sse.named("error", _error(error))


def _error(error: RequestError) -> dict[str, object]:
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status, fallback)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _metadata(sent: _Metadata | None) -> dict[str, str]:
    """Claude Code sends its ids as JSON inside the one string that the format has for them."""
    if sent is None or sent.user_id is None:
        return {}
    base.check_size(len(sent.user_id), "metadata.user_id")
    inner = base.flatten_text(sent.user_id, "metadata.user_id")
    return {"user_id": sent.user_id} if inner is None else inner


def _tools(raw: msgspec.Raw) -> list[_Tool]:
    return base.decode(_TOOLS, raw, "tools")


def _is_client_tool(tool: _Tool) -> bool:
    return tool.type is None or tool.type == "custom"


def _blocks(content: str | list[_Block] | None) -> list[_Block]:
    """A string is one text block, and none at all is no block (T20)."""
    if isinstance(content, str):
        return [_Block(type="text", text=content)]
    return content or []


def _system_texts(raw: msgspec.Raw) -> list[str]:
    return _texts(_blocks(base.decode(_SYSTEM, raw, "system")), "system")


def _without_billing(text: str) -> str | None:
    """The text less its billing line, which changes from call to call; None when that was all."""
    if not text.startswith(_BILLING):
        return text
    _, _, rest = text.partition("\n")
    return rest or None


def _texts(blocks: Sequence[_Block], where: str) -> list[str]:
    texts = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        match block.type:
            case "text":
                texts.append(_text(block, place))
            case "tool_reference":
                named = base.require(block.tool_name, f"{place}.tool_name", "the name of a tool")
                texts.append(f"tool_reference: {named}")
            case _:
                raise _unsupported(block, place, "text")
    return texts


def _text(block: _Block, place: str) -> str:
    return base.require(block.text, f"{place}.text", "a string")


def _unsupported(block: _Block, place: str, expected: str) -> RequestError:
    kind = block.type[:40]
    return RequestError(f"{kind} blocks are not supported here; expected {expected}", where=place)


def _read_user(blocks: Sequence[_Block]) -> list[Message]:
    """Tool results and runs of text as messages of their own, in the order they were sent."""
    messages: list[Message] = []
    texts: list[str] = []

    def close() -> None:
        text = "\n".join(texts)
        if text:
            messages.append(Message(role="user", text=text))
        texts.clear()

    for index, block in enumerate(blocks):
        place = f"content[{index}]"
        match block.type:
            case "text":
                texts.append(_text(block, place))
            case "tool_result":
                close()
                call = base.require(block.tool_use_id, f"{place}.tool_use_id", "a call's id")
                text = "\n".join(_texts(_blocks(block.content), f"{place}.content"))
                messages.append(Message(role="tool", text=text, answers=call))
            case _:
                raise _unsupported(block, place, "text or tool_result")
    close()
    return messages or [Message(role="user")]


def _read_assistant(blocks: Sequence[_Block]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        place = f"content[{index}]"
        match block.type:
            case "text":
                text = _text(block, place)
                # Clients drop blank text from a history or keep it as they please.
                texts += [text] if text.strip() else []
            case "thinking":
                thoughts.append(base.require(block.thinking, f"{place}.thinking", "a string"))
            case "redacted_thinking":
                continue
            case "tool_use":
                calls.append(_read_call(block, place))
            case _:
                raise _unsupported(block, place, "text, thinking or tool_use")
    reasoning = "\n".join(thoughts) if thoughts else None
    return Message(role="assistant", text="".join(texts), reasoning=reasoning, calls=tuple(calls))


def _read_call(block: _Block, place: str) -> ToolCall:
    arguments = base.text_of(block.input, f"{place}.input")
    inner = base.object_of(arguments) if _RAW_ARGUMENTS in arguments else None
    if inner is not None and list(inner) == [_RAW_ARGUMENTS]:
        arguments = base.text_of(inner[_RAW_ARGUMENTS], f"{place}.input")
    return ToolCall(
        id=base.require(block.id, f"{place}.id", "a string"),
        name=base.require(block.name, f"{place}.name", "the name of a tool"),
        arguments=arguments,
    )


def _envelope(reply: Reply) -> dict[str, object]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(usage: Usage) -> dict[str, object]:
    """Clients add the three input counts up to know how full the window is."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _written(message: Message) -> list[dict[str, object]]:
    """Content blocks, with the input of a call still the text that was sampled."""
    blocks: list[dict[str, object]] = []
    if message.reasoning:
        # Clients echo a signature verbatim, and some drop thinking that has none.
        signature = xxhash.xxh3_128_hexdigest(message.reasoning.encode())
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": signature})
    if message.text.strip() or (message.text and not message.calls):
        blocks.append({"type": "text", "text": message.text})
    blocks += (
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in message.calls
    )
    return blocks


def _inlined(block: dict[str, object]) -> dict[str, object]:
    """The block of a whole body, where the input of a call must be an object."""
    match block:
        case {"type": "tool_use", "input": str(arguments)}:
            if base.object_of(arguments) is None:
                return block | {"input": {_RAW_ARGUMENTS: arguments}}
            return block | {"input": msgspec.Raw(arguments)}
        case _:
            return block


def _block_frames(index: int, block: dict[str, object]) -> list[bytes]:
    """One block of a stream: it opens empty, is filled by deltas, and closes."""
    deltas: list[dict[str, object]]
    match block["type"]:
        case "thinking":
            empty = block | {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "text":
            empty = block | {"text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
        case _:
            empty = block | {"input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": block["input"]}]
    start = {"type": "content_block_start", "index": index, "content_block": empty}
    return [
        sse.named("content_block_start", start),
        *(
            sse.named(
                "content_block_delta",
                {"type": "content_block_delta", "index": index, "delta": delta},
            )
            for delta in deltas
        ),
        sse.named("content_block_stop", {"type": "content_block_stop", "index": index}),
    ]
