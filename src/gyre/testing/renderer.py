"""A renderer whose tokens are bytes: ChatML in miniature, for tests that need every token in view.

Ids under 256 are bytes. Special ids open and close turns, thinking and tool calls. Ids from 512 on
spell a byte twice, so an output can be sampled in a way that no encoding of its text would give.
"""

import json
from collections.abc import Sequence
from typing import Literal

from gyre.types.conversation import Message, Tool
from gyre.types.protocols import (
    GENERATION,
    PREFACE,
    Continuation,
    ParsedCall,
    ParsedReply,
    RenderedTokens,
)

OPEN, CLOSE, CALL, CALL_END, THINK, THINK_END = range(256, 262)
TWICE = 512


def text_ids(text: str) -> list[int]:
    """One id per byte, never a special one."""
    return list(text.encode("utf-8", "replace"))


def twice(text: str) -> list[int]:
    """Another spelling of a text of doubled bytes ("aabb"), half as long."""
    data = text.encode()
    if data[::2] != data[1::2]:
        raise ValueError(f"{text!r}: expected every byte doubled")
    return [TWICE + byte for byte in data[::2]]


def reply_ids(
    text: str = "",
    *,
    reasoning: str | None = None,
    calls: Sequence[tuple[str, str]] = (),
    close: bool = True,
) -> list[int]:
    """The canonical ids of a reply; calls are (name, arguments as JSON text)."""
    ids: list[int] = []
    if reasoning is not None:
        ids += [THINK, *text_ids(reasoning), THINK_END]
    ids += text_ids(text)
    for name, arguments in calls:
        ids += [CALL, *text_ids(f"{name} {arguments}"), CALL_END]
    return [*ids, CLOSE] if close else ids


class ByteRenderer:
    """Satisfies the Renderer port; `thinking="template"` drops earlier thinking as Qwen3's does."""

    def __init__(self, *, thinking: Literal["all", "template"] = "all") -> None:
        self._thinking = thinking
        self.keeps_thinking = thinking == "all"

    @property
    def name(self) -> str:
        return f"bytes thinking={self._thinking}"

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (CLOSE,)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> RenderedTokens:
        ids: list[int] = []
        owners: list[int] = []

        def emit(owner: int, new: Sequence[int]) -> None:
            ids.extend(new)
            owners.extend([owner] * len(new))

        if tools:
            owner = 0 if messages and messages[0].role == "system" else PREFACE
            emit(owner, [OPEN, *text_ids("tools\n")])
            for tool in tools:
                emit(owner, text_ids(f"{tool.name} {tool.description} {tool.parameters}\n"))
            emit(owner, [CLOSE, *text_ids("\n")])
        asked = [index for index, one in enumerate(messages) if one.role == "user"]
        for index, message in enumerate(messages):
            forget = self._thinking == "template" and bool(asked) and index < asked[-1]
            emit(index, self._turn(message, forget=forget))
            emit(index, text_ids("\n"))
        emit(GENERATION, [OPEN, *text_ids("assistant\n")])
        return RenderedTokens(ids=ids, owners=owners)

    def bridge(
        self,
        prompt_tail: Sequence[int],
        output: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> Continuation | None:
        if self._thinking == "template" and any(one.role == "user" for one in messages):
            return None
        closed = CLOSE in output
        trim = list(reversed(output)).index(CLOSE) if closed else 0
        ids = text_ids("\n") if closed else [CLOSE, *text_ids("\n")]
        owners = [0] * len(ids)
        for index, message in enumerate(messages):
            turn = [*self._turn(message, forget=False), *text_ids("\n")]
            ids += turn
            owners += [index] * len(turn)
        opener = [OPEN, *text_ids("assistant\n")]
        return Continuation(trim=trim, ids=ids + opener, owners=owners + [GENERATION] * len(opener))

    def parse(
        self, output: Sequence[int], prompt_tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedReply:
        reasoning: str | None = None
        calls: list[ParsedCall] = []
        text: list[int] = []
        inside: list[int] = []
        opener: int | None = None
        for position, token in enumerate(output):
            if token == CLOSE:
                break
            if token in (THINK, CALL):
                opener, inside = token, []
            elif token == THINK_END and opener == THINK:
                reasoning, opener = self.decode(inside), None
            elif token == CALL_END and opener == CALL:
                name, _, arguments = self.decode(inside).partition(" ")
                end = position + 1
                calls.append(ParsedCall(name=name, arguments=arguments, native_id=None, end=end))
                opener = None
            else:
                (text if opener is None else inside).append(token)
        if opener == THINK:
            reasoning = self.decode(inside)
        elif opener == CALL:
            text += inside
        return ParsedReply(text=self.decode(text), reasoning=reasoning, calls=tuple(calls))

    def encode(self, text: str) -> list[int]:
        return text_ids(text)

    def decode(self, ids: Sequence[int]) -> str:
        data = bytearray()
        for token in ids:
            if token >= TWICE:
                data += bytes([token - TWICE]) * 2
            elif token < OPEN:
                data.append(token)
        return data.decode("utf-8", "replace")

    def _turn(self, message: Message, *, forget: bool) -> list[int]:
        if message.role == "assistant":
            body = reply_ids(
                message.text,
                reasoning=None if forget else message.reasoning,
                calls=[(call.name, _compact(call.arguments)) for call in message.calls],
            )
            return [OPEN, *text_ids("assistant\n"), *body]
        head = f"{message.role} {message.name}" if message.name else message.role
        return [OPEN, *text_ids(head + "\n" + message.text), CLOSE]


def _compact(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments
