"""Replies as items of OpenAI Responses: one body, or the events that build it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from gyre.net import proxy_sse as sse
from gyre.proxy.dialects import fields
from gyre.types.conversation import Reply, ToolCall, Usage

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


def body(reply: Reply, offers: Mapping[str, OfferedTool]) -> bytes:
    """The whole response; `offers` are the client's tools by full name."""
    return _ENCODER.encode(_response(reply, _items(reply, offers)))


def events(reply: Reply, offers: Mapping[str, OfferedTool]) -> bytes:
    """The same response as a stream, its events numbered from 0."""
    items = _items(reply, offers)
    start, end = _envelope(f"resp_{reply.id}", reply.model, reply.at), _response(reply, items)
    told: list[dict[str, object]] = [
        {"type": "response.created", "response": start},
        {"type": "response.in_progress", "response": start},
    ]
    for index, item in enumerate(items):
        told += _item_events(index, item)
    told.append({"type": f"response.{end['status']}", "response": end})
    return b"".join(
        sse.named(str(event["type"]), event | {"sequence_number": number})
        for number, event in enumerate(told)
    )


def failure(code: str, message: str) -> bytes:
    """The one event of a response that came to nothing; Codex retries by its code."""
    response = _envelope("resp_failed", "", 0.0) | {
        "status": "failed",
        "error": {"code": code, "message": message},
    }
    event = {"type": "response.failed", "sequence_number": 0, "response": response}
    return sse.named("response.failed", event)


def _is_cut(reply: Reply) -> bool:
    # Nobody should read an aborted reply; if somebody does, it was cut.
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
    """A call of a tool that nobody offered is a function call: the client has words for it."""
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
    entries = fields.object_of(arguments)
    if entries is None or "input" not in entries:
        return arguments
    return fields.text_of(entries["input"], "input")


def _item_events(index: int, item: Item) -> Iterator[dict[str, object]]:
    """An item opens empty, is filled part by part, and closes whole."""
    about = {"output_index": index, "item_id": item["id"]}
    match item:
        case {"type": "reasoning", "content": [{"text": str(text)}]}:
            empty = item | {"summary": [], "content": []}
            inner = [*_summary_events(text), *_thinking_events(text)]
        case {"type": "message", "content": [{"text": str(text)}]}:
            empty = item | {"status": "in_progress", "content": []}
            inner = list(_text_events(text))
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


def _thinking_events(text: str) -> Iterator[dict[str, object]]:
    part = {"type": "reasoning_text", "text": text}
    empty = part | {"text": ""}
    yield {"type": "response.content_part.added", "content_index": 0, "part": empty}
    yield {"type": "response.reasoning_text.delta", "content_index": 0, "delta": text}
    yield {"type": "response.reasoning_text.done", "content_index": 0, "text": text}
    yield {"type": "response.content_part.done", "content_index": 0, "part": part}


def _text_events(text: str) -> Iterator[dict[str, object]]:
    part: dict[str, object] = {"type": "output_text", "text": text, "annotations": []}
    empty = part | {"text": ""}
    kind = "response.output_text"
    yield {"type": "response.content_part.added", "content_index": 0, "part": empty}
    yield {"type": f"{kind}.delta", "content_index": 0, "delta": text, "logprobs": []}
    yield {"type": f"{kind}.done", "content_index": 0, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", "content_index": 0, "part": part}
