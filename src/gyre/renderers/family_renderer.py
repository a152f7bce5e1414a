"""A family of the `renderers` package behind the Renderer protocol (SPEC 4.2).

Rule 1: what was sampled is never encoded again; a bridge only adds after it, or trims its stop.
Rule 2: of a prompt only its last turn's opening is looked at, so its length costs nothing: a
dozen tokens of generation prompt, or more where the client has begun the reply.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from gyre.renderers.families import (
    FAMILIES,
    Family,
    ParsedToolCall,
    Thinking,
    ToolCallParseStatus,
    changed_settings,
    package_renderer,
    settings_of,
)
from gyre.renderers.tokenizer import PackageTokenizer, encodable
from gyre.renderers.tool_calls import as_json, read_call
from gyre.types.conversation import Message, Tool, ToolCall
from gyre.types.errors import RequestError
from gyre.types.protocols import (
    GENERATION,
    PREFACE,
    Continuation,
    ParsedCall,
    ParsedReply,
    RenderedTokens,
)

MOST_DEPTH = 64
"""JSON nested deeper than this is kept as text: templates walk it by recursion (T18)."""


class FamilyFormatter:
    """Turns messages into the form that one family's template takes."""

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


_PROBE = Message(role="user", text="a")
_PROBE_CALL = ToolCall(id="functions.a:0", name="a", arguments="{}")
_NAME = re.compile(r"[\w.:/-]+")
"""What could name a tool; some parsers take a whole malformed call for a name."""
_WELL_FORMED = {
    ToolCallParseStatus.OK,
    # Bare text where the schema asks for something else: the harness judges arguments.
    ToolCallParseStatus.INVALID_JSON,
    ToolCallParseStatus.UNKNOWN_TOOL,
}


class FamilyRenderer:
    """The Renderer protocol over one family of the `renderers` package."""

    def __init__(
        self,
        name: str,
        tokens: PackageTokenizer,
        *,
        thinking: Thinking = "all",
        enable_thinking: bool | None = None,
    ) -> None:
        self._family = FAMILIES[name]
        settings = settings_of(name, thinking=thinking, enable_thinking=enable_thinking)
        self._tokens = tokens
        self.keeps_thinking = thinking == "all"
        self._inner: Any = package_renderer(name, tokens, settings)
        self._shapes = FamilyFormatter(self._family, tokens)
        self.stop_ids: tuple[int, ...] = tuple(self._inner.get_stop_token_ids())
        self.name = " ".join(
            [name, f"thinking={thinking}", *changed_settings(self._inner.config, name)]
        )
        self._openings = self._probe()

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> RenderedTokens:
        shaped, origins = self._shapes.messages(messages, opens=True)
        try:
            rendered = self._inner.render(
                shaped, tools=self._shapes.tools(tools), add_generation_prompt=True
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"the template of {self.name} does not take this conversation: {error}"
            raise RequestError(message) from error
        ids: list[int] = rendered.token_ids
        owners = _owners(
            rendered.message_indices, origins, system_first=messages[0].role == "system"
        )
        if self._family.stop_opens:
            self._give_openers_to_turns(ids, owners, messages)
        return RenderedTokens(ids=ids, owners=owners)

    def bridge(
        self,
        prompt_tail: Sequence[int],
        output: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> Continuation | None:
        if not messages or any(message.role == "assistant" for message in messages):
            return None
        kept = list(output)
        if any(stop in kept[:-1] for stop in self.stop_ids):
            # The engine ran past a stop: no template has a turn that goes on after its end.
            return None
        stopped = bool(kept) and kept[-1] in self.stop_ids
        if stopped and self._family.stop_opens:
            kept.pop()
        ids = self._follow(prompt_tail, kept, messages, tools)
        if ids is None and stopped and not self._family.stop_opens:
            # The model stopped inside its thinking: the stop gives way to what closes both.
            kept.pop()
            ids = self._follow(prompt_tail, kept, messages, tools)
        if ids is None:
            return None
        return Continuation(trim=len(output) - len(kept), ids=ids[0], owners=ids[1])

    def parse(
        self, output: Sequence[int], prompt_tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedReply:
        ids = list(output)
        try:
            found = self._inner.parse_response(
                ids, tools=self._shapes.schemas(tools), prompt_ids=self._opening(prompt_tail)
            )
        except (ValueError, RecursionError):
            # Numbers of thousands of digits or nesting of thousands of levels: text (T18).
            end = next((at for at, token in enumerate(ids) if token in self.stop_ids), len(ids))
            return ParsedReply(text=self.decode(ids[:end]), reasoning=None, calls=())
        texts = [found.content]
        calls: list[ParsedCall] = []
        spans = [attempt.token_span for attempt in found.tool_calls]
        for position, attempt in enumerate(found.tool_calls):
            span = attempt.token_span
            shared = span in spans[position + 1 :]
            call = _call(attempt, end=None if span is None or shared else span[1])
            if call is not None:
                calls.append(call)
            elif span is None:
                texts.append(attempt.raw)
            elif not shared:
                texts.append(self.decode(ids[span[0] : span[1]]))
        text = "\n".join(part for part in texts if part)
        return ParsedReply(text=text, reasoning=found.reasoning_content or None, calls=tuple(calls))

    def encode(self, text: str) -> list[int]:
        return self._tokens.plain(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokens.decode(ids)

    def _follow(
        self,
        prompt_tail: Sequence[int],
        kept: list[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[list[int], list[int]] | None:
        """Ids and owners of what comes after the kept output; None when the package refuses."""
        opening = self._opening(prompt_tail)
        shaped, origins = self._shapes.messages(messages, opens=False)
        try:
            bridged = self._inner.bridge_to_next_turn(
                opening, kept, shaped, tools=self._shapes.schemas(tools)
            )
        except (ValueError, RecursionError):
            # Some bridges parse the reply first, and stumble as `parse` does.
            return None
        known = [*opening, *kept]
        if bridged is None or bridged.token_ids[: len(known)] != known:
            return None
        ids: list[int] = bridged.token_ids[len(known) :]
        indices: list[int] = bridged.message_indices[len(known) :]
        if self._family.stop_opens:
            # The package ends such a reply with a stop of its own; the next opener does as well.
            close = next(at for at, token in enumerate(ids) if token in self.stop_ids)
            ids, indices = _without(ids, close), _without(indices, close)
        owners = _owners(indices, origins, system_first=False)
        return ids, [0 if owner == PREFACE else owner for owner in owners]

    def _opening(self, prompt_tail: Sequence[int]) -> list[int]:
        """The generation prompt alone, or all there is where a reply was begun by the client."""
        for opening in self._openings:
            if tuple(prompt_tail[-len(opening) :]) == opening:
                return list(opening)
        return list(prompt_tail)

    def _probe(self) -> list[tuple[int, ...]]:
        """How prompts end: after a user's turn, and after a tool's."""
        called = Message(role="assistant", calls=(_PROBE_CALL,))
        result = Message(role="tool", text="a", answers=_PROBE_CALL.id, name=_PROBE_CALL.name)
        found = set()
        for messages in ([_PROBE], [_PROBE, called, result]):
            rendered = self.render(messages, ())
            size = rendered.owners.count(GENERATION)
            # Where a template adds nothing after tool results, their end is the opening.
            found.add(tuple(rendered.ids[-max(size, 1) :]))
        return sorted(found, key=len, reverse=True)

    def _give_openers_to_turns(
        self, ids: list[int], owners: list[int], messages: Sequence[Message]
    ) -> None:
        """A turn's opener is its own, though a model may have sampled it to end its reply."""
        for at in range(len(ids) - 1):
            owner, following = owners[at], owners[at + 1]
            if (
                ids[at] in self.stop_ids
                and owner < following
                and messages[owner].role == "assistant"
            ):
                owners[at] = following


def _owners(indices: Sequence[int], origins: Sequence[int], *, system_first: bool) -> list[int]:
    """Scaffold between messages belongs to the one that follows; at the ends it is its own."""
    runs = [
        (origins[index] if index >= 0 else None, len(list(run))) for index, run in groupby(indices)
    ]
    owners: list[int] = []
    last: int | None = None
    for at, (origin, length) in enumerate(runs):
        if origin is not None:
            owner = last = origin
        else:
            later = (one for one, _ in runs[at + 1 :] if one is not None)
            owner = next(later, GENERATION)
            if owner != GENERATION and last is None:
                owner = PREFACE
            elif owner != GENERATION and last == 0 and system_first:
                # Tools that share the system message's block are part of it.
                owner = 0
        owners += [owner] * length
    return owners


def _without(values: list[int], at: int) -> list[int]:
    return values[:at] + values[at + 1 :]


def _call(attempt: ParsedToolCall, end: int | None) -> ParsedCall | None:
    """The call, or None where what was written is not one."""
    name = attempt.name
    if attempt.status not in _WELL_FORMED or not isinstance(name, str):
        return None
    if _NAME.fullmatch(name) is None:
        return None
    verbatim = read_call(attempt.raw)
    arguments = verbatim[1] if verbatim is not None else as_json(attempt.arguments)
    if arguments is None:
        return None
    return ParsedCall(name=name, arguments=arguments, native_id=attempt.id, end=end)
