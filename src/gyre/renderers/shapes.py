"""Messages and tools in the shapes that the `renderers` package takes, outside text marked."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gyre.renderers.families import Family
from gyre.renderers.marks import encodable
from gyre.renderers.tokens import PackageTokenizer
from gyre.types.conversation import Message, Tool, ToolCall
from gyre.types.errors import RequestError

MOST_DEPTH = 64
"""JSON nested deeper than this is kept as text: templates walk it by recursion (T18)."""


class FamilyFormatter:
    """Writes conversations down for one family."""

    def __init__(self, family: Family, tokens: PackageTokenizer) -> None:
        self._family = family
        self._say: Callable[[str], str] = encodable if family.own_encoder else tokens.mark
        self._word = tokens.mark_word if family.tagged_words else self._say
        self._tools: dict[tuple[Tool, ...], list[dict[str, Any]]] = {}
        self._bare_tools: dict[tuple[Tool, ...], list[dict[str, Any]]] = {}

    def messages(
        self, messages: Sequence[Message], *, opens: bool
    ) -> tuple[list[dict[str, Any]], list[int]]:
        """The messages, and for each the position it came from; `opens`: they begin a prompt."""
        shaped: list[dict[str, Any]] = []
        origins: list[int] = []
        if self._family.names_in_ids:
            messages = _with_named_ids(messages)
        for position, message in enumerate(messages):
            leads = opens and position == 0
            written = self._message(message, leads=leads)
            shaped += written
            origins += [position] * len(written)
        return shaped, origins

    def tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """What a template shows of tools; raises RequestError where a schema is no object."""
        return _kept(self._tools, tuple(tools), self._word)

    def schemas(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """The same for a parser, which compares names: unmarked."""
        return _kept(self._bare_tools, tuple(tools), encodable)

    def _message(self, message: Message, *, leads: bool) -> list[dict[str, Any]]:
        content = self._say(message.text)
        match message.role:
            case "system":
                heard = leads or not self._family.system_first
                return [{"role": "system" if heard else "user", "content": content}]
            case "tool":
                return [self._result(message, content)]
            case "assistant":
                return self._assistant(message, content)
            case _:
                return [{"role": message.role, "content": content}]

    def _result(self, message: Message, content: str) -> dict[str, Any]:
        shaped = {"role": "tool", "content": content}
        if message.answers is not None and not self._family.sorts_results:
            shaped["tool_call_id"] = self._say(message.answers)
        if message.name is not None:
            shaped["name"] = self._say(message.name)
        return shaped

    def _assistant(self, message: Message, content: str) -> list[dict[str, Any]]:
        shaped: dict[str, Any] = {"role": "assistant", "content": content}
        if message.reasoning is not None:
            shaped["reasoning_content"] = self._say(message.reasoning)
        calls = [self._call(call) for call in message.calls]
        if not calls:
            return [shaped]
        if not self._family.one_call:
            return [shaped | {"tool_calls": calls}]
        # A template with room for one call has none for text beside it.
        said = [shaped] if message.text else []
        return said + [shaped | {"content": "", "tool_calls": [call]} for call in calls]

    def _call(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": self._say(call.name), "arguments": self._arguments(call.arguments)}
        shaped: dict[str, Any] = {"type": "function", "function": function}
        if not self._family.sorts_results:
            identity = call.id if call.native_id is None else call.native_id
            shaped["id"] = self._say(identity)
        return shaped

    def _arguments(self, text: str) -> dict[str, Any] | str:
        if not text.strip():
            return {}
        value = json_object(text)
        if value is None:
            raw = self._say(text)
            return {"arguments": raw} if self._family.bare_arguments else raw
        if self._family.bare_arguments:
            value = {
                key: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
                for key, one in value.items()
            }
        marked: dict[str, Any] = _marked(value, self._say)
        return marked


def _with_named_ids(messages: Sequence[Message]) -> list[Message]:
    """Calls that another model made, and their results, under ids that name the function."""
    named: dict[str, str] = {}
    number = 0
    changed = []
    for message in messages:
        calls = []
        for call in message.calls:
            if call.native_id is None:
                named[call.id] = f"functions.{call.name}:{number}"
                call = replace(call, native_id=named[call.id])
            calls.append(call)
            number += 1
        answers = named.get(message.answers or "", message.answers)
        changed.append(replace(message, calls=tuple(calls), answers=answers))
    return changed


def json_object(text: str) -> dict[str, Any] | None:
    """The object that the text is, unless it is none or too deep to be walked."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _depth(value) <= MOST_DEPTH else None


def _depth(value: Any) -> int:
    """Levels of nesting, counted no further than it matters."""
    level, depth = [value], 0
    while level and depth <= MOST_DEPTH:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth


def _marked(value: Any, mark: Callable[[str], str]) -> Any:
    match value:
        case str():
            return mark(value)
        case dict():
            return {mark(key): _marked(inner, mark) for key, inner in value.items()}
        case list():
            return [_marked(inner, mark) for inner in value]
        case _:
            return value


def _kept(
    known: dict[tuple[Tool, ...], list[dict[str, Any]]],
    tools: tuple[Tool, ...],
    mark: Callable[[str], str],
) -> list[dict[str, Any]] | None:
    """Tools seldom change within an execution, and their schemas are long."""
    if not tools:
        return None
    if tools not in known:
        if len(known) >= _MOST_KEPT:
            known.clear()
        known[tools] = [_tool(tool, position, mark) for position, tool in enumerate(tools)]
    return known[tools]


_MOST_KEPT = 32


def _tool(tool: Tool, position: int, mark: Callable[[str], str]) -> dict[str, Any]:
    parameters = json_object(tool.parameters)
    if parameters is None:
        message = f"parameters of {tool.name!r}: expected a JSON object at most {MOST_DEPTH} deep"
        raise RequestError(message, where=f"tools[{position}]")
    function = {
        "name": mark(tool.name),
        "description": mark(tool.description),
        "parameters": _marked(parameters, mark),
    }
    return {"type": "function", "function": function}
