"""Anthropic Messages: requests become conversations, replies become messages or their events."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import xxhash

from gyre.net import sse
from gyre.proxy.dialects import base, typed_tools
from gyre.proxy.dialects.base import MediaParts, ParsedRequest, RequestReader
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
_MEDIA = frozenset({"image", "document"})
_SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "stop_sequences",
    "thinking",
    "tool_choice",
    "output_config",
    "output_format",
)
_HARMLESS = (
    # Which features of the API a client knows, and who pays for what.
    *("betas", "anthropic_beta", "anthropic_version", "service_tier", "speed", "inference_geo"),
    *("user_profile_id", "workspace_id", "fallback_credit_token"),
    # No reply depends on what a server keeps of prompts.
    *("cache_control", "diagnostics", "context_hint"),
    # The policy declines nothing in whose place another model would answer.
    "fallbacks",
    # Clears what a client could clear itself; a prompt that does not fit is refused.
    "context_management",
)
_REFUSED = {
    "compaction": "this proxy writes no compaction blocks; expected a prompt for a summary",
    "container": "this proxy runs no code; expected null",
    "mcp_servers": "this proxy calls no servers; expected their tools in tools",
}
THREADS = "thread_unsupported_request"
"""The code by which Anthropic's client sends a conversation again, whole and without a thread."""


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
    output_config: msgspec.Raw = msgspec.Raw()
    output_format: msgspec.Raw = msgspec.Raw()
    thread: msgspec.Raw = msgspec.Raw()
    metadata: _Metadata | None = None


class _OutputConfig(msgspec.Struct):
    format: msgspec.Raw = msgspec.Raw()


class _Block(msgspec.Struct):
    """A content block of any type; what a type needs is asked for when it is read.

    `is_error` of a tool's result is not: no chat template has a place for it, and the text of the
    result is what the model goes by.
    """

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
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.Raw()


REQUEST = RequestReader(_Body, harmless=_HARMLESS, refused=_REFUSED)
_OUTPUT_CONFIG = msgspec.json.Decoder(_OutputConfig)
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
        sent, unknown = REQUEST.read(body)
        if base.is_asked(sent.thread):
            what = "this proxy keeps no conversations; expected null, and all of it in messages"
            raise RequestError(what, where="thread", code=THREADS)
        asked = base.settings(sent, _SETTINGS)
        is_forced, most_calls = base.choice_of(sent.tool_choice)
        return ParsedRequest(
            model=sent.model,
            stream=sent.stream is True,
            system=base.present(sent.system),
            messages=sent.messages,
            tools=base.present(sent.tools),
            max_tokens=sent.max_tokens,
            asked=asked | base.listed(unknown),
            metadata=_metadata(sent.metadata),
            stop=tuple(sent.stop_sequences or ()),
            unenforced=("tool_choice",) * is_forced + tuple(_formats(sent)),
            unknown=unknown,
            most_calls=most_calls,
        )

    def read_system(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        texts = (_without_billing(text) for text in _system_texts(raw))
        text = "\n".join(text for text in texts if text is not None)
        return (Message(role="system", text=text),) if text else ()

    def read(self, raw: msgspec.Raw, media: MediaParts | None = None) -> tuple[Message, ...]:
        sent = base.decode(_MESSAGE, raw)
        blocks = _blocks(sent.content)
        match sent.role:
            case "user":
                return tuple(_read_user(blocks, media or MediaParts()))
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
            _shown(tool, f"tools[{index}].input_schema") for index, tool in _client_tools(raw)
        )

    def evidence(self, wire: ParsedRequest, headers: Mapping[str, str]) -> Evidence:
        tools = () if wire.tools is None else _client_tools(wire.tools)
        system = () if wire.system is None else _system_texts(wire.system)
        return Evidence(
            dialect=self.name,
            headers=base.harmless(headers),
            metadata=wire.metadata,
            system=base.opening("\n".join(system)),
            tools=tuple(tool.name for _, tool in tools),
            last_user=base.last_user(wire.messages, "messages"),
            num_messages=len(wire.messages),
        )

    def body(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        reply = replies[0]
        return _ENCODER.encode(
            _envelope(reply)
            | {
                "content": [_inlined(block) for block in _written(reply.message)],
                "usage": _usage(reply.usage),
            }
            | _ending(reply)
        )

    def events(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        reply = replies[0]
        usage = _usage(reply.usage)
        start = _envelope(reply) | {"usage": usage | {"output_tokens": 0}}
        frames = [sse.named("message_start", {"type": "message_start", "message": start})]
        for index, block in enumerate(_written(reply.message)):
            frames += _block_frames(index, block)
        end = {"type": "message_delta", "delta": _ending(reply), "usage": usage}
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
    told: dict[str, object] = {"type": kind, "message": str(error)}
    if error.code is not None:
        told["details"] = {"error_code": error.code}
    return {"type": "error", "error": told}


def _formats(sent: _Body) -> Iterator[str]:
    """The fields that ask for a reply in some format."""
    if base.is_formatted(sent.output_format, "output_format"):
        yield "output_format"
    if base.is_asked(sent.output_config):
        config = base.decode(_OUTPUT_CONFIG, sent.output_config, "output_config")
        if base.is_formatted(config.format, "output_config.format"):
            yield "output_config.format"


def _metadata(sent: _Metadata | None) -> dict[str, str]:
    """Claude Code sends its ids as JSON inside the one string that the format has for them."""
    if sent is None or sent.user_id is None:
        return {}
    base.check_size(len(sent.user_id), "metadata.user_id")
    inner = base.flatten_text(sent.user_id, "metadata.user_id")
    return {"user_id": sent.user_id} if inner is None else inner


def _client_tools(raw: msgspec.Raw) -> Iterator[tuple[int, _Tool]]:
    """The tools that the client runs, by place; those that a server would run are left out."""
    tools = base.decode(_TOOLS, raw, "tools")
    for index, tool in enumerate(tools):
        kind = tool.type or "custom"
        if kind.startswith(typed_tools.ANTHROPIC_HOSTED):
            continue
        if kind != "custom" and kind not in typed_tools.ANTHROPIC:
            known = "custom, bash, text_editor or memory"
            what = f"{kind[:40]} tools are not supported; expected {known}"
            raise RequestError(what, where=f"tools[{index}]")
        if not tool.name:
            raise RequestError("required, but missing", where=f"tools[{index}].name")
        yield index, tool


def _shown(tool: _Tool, where: str) -> Tool:
    typed = typed_tools.ANTHROPIC.get(tool.type or "custom")
    if typed is not None:
        return Tool(name=tool.name, description=typed.description, parameters=typed.parameters)
    parameters = base.schema_of(tool.input_schema, where)
    return Tool(name=tool.name, description=tool.description or "", parameters=parameters)


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


def _texts(blocks: Sequence[_Block], where: str, media: MediaParts | None = None) -> list[str]:
    texts = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        match block.type:
            case "text":
                texts.append(_text(block, place))
            case "tool_reference":
                named = base.require(block.tool_name, f"{place}.tool_name", "the name of a tool")
                texts.append(f"tool_reference: {named}")
            case kind if media is not None and kind in _MEDIA:
                texts.append(media.text(kind))
            case _:
                raise _unsupported(block, place, "text")
    return texts


def _text(block: _Block, place: str) -> str:
    return base.require(block.text, f"{place}.text", "a string")


def _unsupported(block: _Block, place: str, expected: str) -> RequestError:
    kind = block.type[:40]
    return RequestError(f"{kind} blocks are not supported here; expected {expected}", where=place)


def _read_user(blocks: Sequence[_Block], media: MediaParts) -> list[Message]:
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
                text = "\n".join(_texts(_blocks(block.content), f"{place}.content", media))
                messages.append(Message(role="tool", text=text, answers=call))
            case kind if kind in _MEDIA:
                texts.append(media.text(kind))
            case _:
                raise _unsupported(block, place, "text, image, document or tool_result")
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


def _ending(reply: Reply) -> dict[str, object]:
    stopped = reply.stop_sequence is not None
    return {
        "stop_reason": "stop_sequence" if stopped else _STOP_REASONS[reply.finish],
        "stop_sequence": reply.stop_sequence,
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
