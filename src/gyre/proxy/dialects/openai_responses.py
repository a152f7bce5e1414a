"""OpenAI Responses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gyre.net import sse
from gyre.proxy.dialects import base, openai_chat
from gyre.proxy.dialects.base import ParsedRequest
from gyre.types.call_records import Evidence
from gyre.types.conversation import Message, Reply, Role, Tool, ToolCall, Usage
from gyre.types.errors import RequestError

_ENCODER = msgspec.json.Encoder()

Item = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool as the client offered it."""

    name: str
    namespace: str | None
    custom: bool
    """Whether it takes free text instead of JSON."""

    @property
    def full_name(self) -> str:
        """The name by which the model knows it."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


def _is_cut(reply: Reply) -> bool:
    # No harness should read an aborted reply; if one does, it was cut.
    return reply.finish in ("length", "abort")


def _response(reply: Reply, items: list[Item]) -> dict[str, object]:
    cut = _is_cut(reply)
    return _envelope(f"resp_{reply.id}", reply.model, reply.at) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": _usage(reply.usage),
    }


def _envelope(response_id: str, model: str, at: float) -> dict[str, object]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(at),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _items(reply: Reply, offers: Mapping[str, OfferedTool]) -> list[Item]:
    """`offers` are the client's tools by full name."""
    message = reply.message
    items: list[Item] = []
    if message.reasoning:
        # Twice, because some clients echo only the words and some only the summary.
        items.append(
            {
                "id": f"rs_{reply.id}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": message.reasoning}],
                "content": [{"type": "reasoning_text", "text": message.reasoning}],
                "encrypted_content": None,
            }
        )
    if message.text:
        items.append(
            {
                "id": f"msg_{reply.id}",
                "type": "message",
                "role": "assistant",
                "status": "incomplete" if _is_cut(reply) and not message.calls else "completed",
                "content": [{"type": "output_text", "text": message.text, "annotations": []}],
            }
        )
    for index, call in enumerate(message.calls):
        items.append(_call_item(call, f"{reply.id}_{index}", offers.get(call.name)))
    return items


def _call_item(call: ToolCall, suffix: str, offer: OfferedTool | None) -> Item:
    """A call of a tool that was not offered is a function call: the client has words for it."""
    item: Item = {"call_id": call.id, "name": call.name if offer is None else offer.name}
    if offer is not None and offer.namespace is not None:
        item["namespace"] = offer.namespace
    if offer is not None and offer.custom:
        kind: Item = {"type": "custom_tool_call", "id": f"ctc_{suffix}", "status": "completed"}
        return kind | item | {"input": _free_text(call.arguments)}
    kind = {"type": "function_call", "id": f"fc_{suffix}", "status": "completed"}
    return kind | item | {"arguments": call.arguments}


def _free_text(arguments: str) -> str:
    """The argument named input; where there is none, all that the model wrote."""
    entries = base.object_of(arguments)
    if entries is None or "input" not in entries:
        return arguments
    return base.text_of(entries["input"], "input")


def _item_events(index: int, item: Item) -> Iterator[dict[str, object]]:
    """An item opens empty, is filled part by part, and closes whole."""
    about = {"output_index": index, "item_id": item["id"]}
    match item:
        case {"type": "reasoning", "content": [{"text": str(text)}]}:
            empty = item | {"summary": [], "content": []}
            part: Item = {"type": "reasoning_text", "text": text}
            inner = [*_summary_events(text), *_part_events("response.reasoning_text", part)]
        case {"type": "message", "content": [{"text": str(text)}]}:
            empty = item | {"status": "in_progress", "content": []}
            part = {"type": "output_text", "text": text, "annotations": []}
            inner = list(_part_events("response.output_text", part, logprobs=[]))
        case {"type": "custom_tool_call", "input": str(text)}:
            empty = item | {"status": "in_progress", "input": ""}
            inner = [
                {"type": "response.custom_tool_call_input.delta", "delta": text},
                {"type": "response.custom_tool_call_input.done", "input": text},
            ]
        case _:
            empty = item | {"status": "in_progress", "arguments": ""}
            done = {"name": item["name"], "arguments": item["arguments"]}
            inner = [
                {"type": "response.function_call_arguments.delta", "delta": item["arguments"]},
                {"type": "response.function_call_arguments.done"} | done,
            ]
    yield {"type": "response.output_item.added", "output_index": index, "item": empty}
    for event in inner:
        yield event | about
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _summary_events(text: str) -> Iterator[dict[str, object]]:
    kind = "response.reasoning_summary"
    part = {"type": "summary_text", "text": text}
    empty = part | {"text": ""}
    yield {"type": f"{kind}_part.added", "summary_index": 0, "part": empty}
    yield {"type": f"{kind}_text.delta", "summary_index": 0, "delta": text}
    yield {"type": f"{kind}_text.done", "summary_index": 0, "text": text}
    yield {"type": f"{kind}_part.done", "summary_index": 0, "part": part}


def _part_events(
    kind: str, part: dict[str, object], **about: object
) -> Iterator[dict[str, object]]:
    """A part of an item's content: it opens empty, comes in one delta, and closes."""
    empty = part | {"text": ""}
    yield {"type": "response.content_part.added", "content_index": 0, "part": empty}
    yield {"type": f"{kind}.delta", "content_index": 0, "delta": part["text"]} | about
    yield {"type": f"{kind}.done", "content_index": 0, "text": part["text"]} | about
    yield {"type": "response.content_part.done", "content_index": 0, "part": part}


_TURN_METADATA = "x-codex-turn-metadata"
_SETTINGS = (
    "temperature",
    "top_p",
    "max_output_tokens",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
)
_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "reasoning_text", "summary_text"})


class _Body(msgspec.Struct):
    model: str
    input: str | list[msgspec.Raw]
    instructions: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    max_output_tokens: base.Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    tool_choice: msgspec.Raw = msgspec.Raw()
    parallel_tool_calls: bool | None = None
    reasoning: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()
    previous_response_id: str | None = None
    conversation: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    client_metadata: msgspec.Raw = msgspec.Raw()
    turn_metadata: msgspec.Raw = msgspec.field(name=_TURN_METADATA, default=msgspec.Raw())
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


class _Kind(msgspec.Struct):
    type: str | None = None
    role: str | None = None


class _MessageItem(msgspec.Struct):
    role: str
    content: str | list[base.Part] | None = None


class _ReasoningItem(msgspec.Struct):
    summary: list[base.Part] | None = None
    content: list[base.Part] | None = None


class _CallItem(msgspec.Struct):
    call_id: str
    name: str
    namespace: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    input: str | None = None


class _OutputItem(msgspec.Struct):
    call_id: str
    output: str | list[base.Part] | None = None
    name: str | None = None


class _Format(msgspec.Struct):
    definition: str | None = None


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    format: _Format | None = None
    tools: "list[_Tool] | None" = None


_BODY = msgspec.json.Decoder(_Body)
_KIND = msgspec.json.Decoder(_Kind)
_MESSAGE = msgspec.json.Decoder(_MessageItem)
_REASONING = msgspec.json.Decoder(_ReasoningItem)
_CALL = msgspec.json.Decoder(_CallItem)
_OUTPUT = msgspec.json.Decoder(_OutputItem)
_TOOLS = msgspec.json.Decoder(list[_Tool])
_INSTRUCTIONS = msgspec.json.Decoder(str)


class OpenAIResponses:
    """OpenAI Responses (SPEC 4.6); keeps no response, so every request brings its whole input."""

    name = "responses"
    conversation = "input"
    coalesces = True
    # Codex counts events as signs of life and comments not; it skips types that it does not know.
    # The type is the one that the format's own servers send while they wait, so that clients that
    # do check types expect it, and the number is there because clients look for one in any event.
    # Of openai's own client only the accumulating helper minds an event before response.created.
    ping = sse.named("keepalive", {"type": "keepalive", "sequence_number": 0})

    def split(self, body: bytes) -> ParsedRequest:
        sent = base.decode_body(_BODY, body)
        for name, value in (
            ("previous_response_id", sent.previous_response_id),
            ("conversation", base.present(sent.conversation)),
        ):
            if value:
                what = (
                    "this proxy keeps no responses; expected null, and the whole history in input"
                )
                raise RequestError(what, where=name)
        return ParsedRequest(
            model=sent.model,
            stream=sent.stream is True,
            system=base.present(sent.instructions),
            messages=[_said(sent.input)] if isinstance(sent.input, str) else sent.input,
            tools=base.present(sent.tools),
            max_tokens=sent.max_output_tokens,
            asked=base.settings(sent, _SETTINGS),
            metadata=_metadata(sent),
        )

    def read_system(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        text = base.decode(_INSTRUCTIONS, raw, "instructions")
        return (Message(role="system", text=text),) if text else ()

    def read(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        sent = base.decode(_KIND, raw)
        kind = "message" if sent.type is None and sent.role is not None else sent.type
        match kind:
            case "message":
                return (_read_message(base.decode(_MESSAGE, raw)),)
            case "reasoning":
                return _read_reasoning(base.decode(_REASONING, raw))
            case "function_call" | "custom_tool_call":
                return (_read_call(base.decode(_CALL, raw), custom=kind == "custom_tool_call"),)
            case "function_call_output" | "custom_tool_call_output":
                output = base.decode(_OUTPUT, raw)
                text = "\n".join(_texts(output.output, "output"))
                return (Message(role="tool", text=text, answers=output.call_id, name=output.name),)
            case None:
                raise RequestError("required, but missing", where="type")
            case other:
                raise RequestError(
                    f"{other[:40]} items are not supported; expected message, reasoning, "
                    "function_call, custom_tool_call or the output of a call",
                    where="type",
                )

    def read_tools(self, raw: msgspec.Raw) -> tuple[Tool, ...]:
        return tuple(
            Tool(
                name=offer.full_name,
                description=tool.description or "",
                parameters=_parameters(tool, where),
            )
            for offer, tool, where in _offers(raw)
        )

    def evidence(self, wire: ParsedRequest, headers: Mapping[str, str]) -> Evidence:
        plain = base.harmless(headers)
        turn = base.flatten_text(plain.get(_TURN_METADATA, ""), _TURN_METADATA) or {}
        system = "" if wire.system is None else base.text_of(wire.system, "instructions")
        return Evidence(
            dialect=self.name,
            headers=plain,
            metadata=turn | dict(wire.metadata),
            system=base.opening(system),
            tools=tuple(offer.full_name for offer, _, _ in _offers(wire.tools)),
            last_user=base.last_user(wire.messages, "input"),
            num_messages=len(wire.messages),
        )

    def body(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        return _ENCODER.encode(_response(replies[0], _items(replies[0], _names(wire))))

    def events(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        """The same response, its events numbered from 0."""
        reply = replies[0]
        items = _items(reply, _names(wire))
        start, end = _envelope(f"resp_{reply.id}", reply.model, reply.at), _response(reply, items)
        stream: list[dict[str, object]] = [
            {"type": "response.created", "response": start},
            {"type": "response.in_progress", "response": start},
        ]
        for index, item in enumerate(items):
            stream += _item_events(index, item)
        stream.append({"type": f"response.{end['status']}", "response": end})
        return b"".join(
            sse.named(str(event["type"]), event | {"sequence_number": number})
            for number, event in enumerate(stream)
        )

    def error(self, error: RequestError) -> bytes:
        return _ENCODER.encode({"error": openai_chat.error_body(error, param="input")})

    def error_event(self, error: RequestError) -> bytes:
        """The one event of a response that came to nothing; Codex retries by its code."""
        words = openai_chat.error_body(error, param="input")
        fallback = "server_error" if error.status >= 500 else "invalid_prompt"
        response = _envelope("resp_failed", "", 0.0) | {
            "status": "failed",
            "error": {"code": words["code"] or fallback, "message": words["message"] or ""},
        }
        event = {"type": "response.failed", "sequence_number": 0, "response": response}
        return sse.named("response.failed", event)


def _said(text: str) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode({"type": "message", "role": "user", "content": text}))


def _metadata(sent: _Body) -> dict[str, str]:
    """Ids wherever the body holds them; the turn's own metadata without a prefix."""
    flat = base.flatten(sent.metadata, "metadata")
    flat |= base.flatten(sent.client_metadata, "client_metadata")
    turn = flat.pop(_TURN_METADATA, "") or base.text_of(sent.turn_metadata, _TURN_METADATA)
    flat |= base.flatten_text(turn, _TURN_METADATA) or {}
    named = base.settings(sent, ("prompt_cache_key", "safety_identifier", "user"))
    return flat | {key: str(value) for key, value in named.items()}


def _texts(content: str | list[base.Part] | None, where: str) -> list[str]:
    return base.texts_of(content, where, kinds=_TEXT_PARTS)


def _read_message(item: _MessageItem) -> Message:
    if item.role not in _ROLES:
        known = "user, assistant, system or developer"
        raise RequestError(f"expected {known}, got {item.role[:40]!r}", where="role")
    role = _ROLES[item.role]
    between = "" if role == "assistant" else "\n"
    return Message(role=role, text=between.join(_texts(item.content, "content")))


def _read_reasoning(item: _ReasoningItem) -> tuple[Message, ...]:
    """Thinking as its own words say it, else as its summary; clients may echo only the latter."""
    texts = _texts(item.content or [], "content") or _texts(item.summary or [], "summary")
    return (Message(role="assistant", reasoning="\n".join(texts)),) if texts else ()


def _read_call(item: _CallItem, *, custom: bool) -> Message:
    if custom:
        said = base.require(item.input, "input", "a string")
        arguments = str(_ENCODER.encode({"input": said}), "utf-8")
    else:
        arguments = base.text_of(item.arguments, "arguments")
    name = f"{item.namespace}.{item.name}" if item.namespace else item.name
    call = ToolCall(id=item.call_id, name=name, arguments=arguments)
    return Message(role="assistant", calls=(call,))


def _offers(raw: msgspec.Raw | None) -> Iterator[tuple[OfferedTool, _Tool, str]]:
    """The client's tools and where they were sent; those that a server would run are left out."""
    tools = [] if raw is None else base.decode(_TOOLS, raw, "tools")
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.type == "namespace":
            namespace = base.require(tool.name, f"{where}.name", "a string")
            for inner, inner_tool in enumerate(tool.tools or ()):
                yield from _offer(inner_tool, namespace, f"{where}.tools[{inner}]")
        else:
            yield from _offer(tool, None, where)


def _offer(
    tool: _Tool, namespace: str | None, where: str
) -> Iterator[tuple[OfferedTool, _Tool, str]]:
    if tool.type in ("function", "custom"):
        name = base.require(tool.name, f"{where}.name", "a string")
        custom = tool.type == "custom"
        yield OfferedTool(name=name, namespace=namespace, custom=custom), tool, where


def _names(wire: ParsedRequest) -> dict[str, OfferedTool]:
    return {offer.full_name: offer for offer, _, _ in _offers(wire.tools)}


def _parameters(tool: _Tool, where: str) -> str:
    """A custom tool takes free text, which the model writes as its one argument."""
    if tool.type == "function":
        return base.schema_of(tool.parameters, f"{where}.parameters")
    text: dict[str, object] = {"type": "string"}
    if tool.format is not None and tool.format.definition:
        text["description"] = tool.format.definition
    schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return str(_ENCODER.encode(schema), "utf-8")
