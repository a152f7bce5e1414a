"""Whether arguments that come back are those that were sampled.

Harnesses parse what a model wrote and write it anew, so that an echo of the same call may look
otherwise. What only looks otherwise is restored as it was sampled; a real edit stays one.

Rule 1: spelling never counts: key order, blanks, escapes, forms of numbers, repeated keys.
Rule 2: neither does what parsers by a schema do: they turn text into numbers, truth values and
objects, and add and drop keys that hold nothing or the schema's own default.
Rule 3: what single programs do besides is listed here, and nothing else is taken for theirs.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gyre.types.conversation import Tool, ToolCall


def canonical_arguments(text: str) -> str:
    """One spelling for arguments that differ in key order, spaces or escapes only.

    Text that is not plain JSON (duplicate keys, NaN, overflow, absurd nesting) stays as it is: it
    equals itself and nothing else (T18).
    """
    try:
        value = json.loads(
            text or "{}",
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse,
            parse_float=_finite,
        )
        canonical = json.dumps({} if value is None else value, sort_keys=True)
    except (ValueError, RecursionError):
        return "raw " + text
    return "json " + canonical


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate keys")
    return found


def _refuse(constant: str) -> object:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


OPENCODE_INVALID = "invalid"
"""What opencode calls a tool that it does not have, with arguments of its own."""
CLAUDE_UNPARSED = "__unparsedToolInput"
"""Key under which Claude Code keeps the beginning of arguments that are not JSON."""
CLAUDE_SHELL = "Bash"
"""Claude Code takes a change to the folder that it is in already out of a command."""
_MOST_CHANGES = 8
CUSTOM = "input"
"""The one argument of a tool that takes free text; of others nothing is sent to its client."""

_NOTHING: tuple[Any, ...] = (None, "", {}, [])


def is_same_call(sampled: ToolCall, echo: ToolCall, tools: Sequence[Tool]) -> bool:
    """Whether the echo, which has the id of the sampled call, does not say anything else."""
    if canonical_arguments(sampled.arguments) == canonical_arguments(echo.arguments):
        return True
    if echo.name == OPENCODE_INVALID != sampled.name:
        return True
    try:
        after = json.loads(echo.arguments or "{}")
        try:
            before = json.loads(sampled.arguments or "{}")
        except ValueError:
            return _holds_text(after, sampled.arguments)
        return _is_same(before, after, sampled, tools)
    except (ValueError, RecursionError):
        return False


def _is_same(before: Any, after: Any, sampled: ToolCall, tools: Sequence[Tool]) -> bool:
    if _agree(before, after):
        return True
    if not isinstance(before, dict) or not isinstance(after, dict):
        return False
    properties = _properties(sampled.name, tools)
    if list(properties) == list(after) == [CUSTOM]:
        return _holds_text(after, sampled.arguments) or _agree(before.get(CUSTOM), after[CUSTOM])
    defaults = {
        key: schema["default"]
        for key, schema in properties.items()
        if isinstance(schema, dict) and "default" in schema
    }
    if _agree(defaults | before, defaults | after):
        return True
    return sampled.name == CLAUDE_SHELL and _is_same_command(before, after)


def _agree(old: Any, new: Any) -> bool:
    """Rules 1 and 2, at every level."""
    match old, new:
        case dict(), dict():
            return all(
                _agree(old[key], new[key])
                if key in old and key in new
                else not old.get(key) and not new.get(key)
                for key in old.keys() | new.keys()
            )
        case list(), list():
            return len(old) == len(new) and all(map(_agree, old, new))
        case str(), str():
            return old == new or _lines(old) == _lines(new)
        case str(), _:
            return _spells(old, new)
        case _, str():
            return _spells(new, old)
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, int | float) and isinstance(new, int | float):
        return old == new or _is_same_double(old, new)
    return old in _NOTHING and new in _NOTHING


def _lines(text: str) -> list[str]:
    """Without blanks at the ends of lines, which Claude Code takes off, and halves of letters."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return [line.rstrip() for line in whole.rstrip().split("\n")]


def _spells(text: str, value: Any) -> bool:
    if text == str(value) or (text in _NOTHING and value in _NOTHING):
        return True
    try:
        spelled = json.loads(text)
    except ValueError:
        return False
    return not isinstance(spelled, str) and _agree(spelled, value)


def _is_same_double(old: float, new: float) -> bool:
    """Whether JavaScript takes both for the same number."""
    try:
        return float(old) == float(new)
    except OverflowError:
        return False


def _holds_text(after: Any, sampled: str) -> bool:
    """Whether all that the echo says is the text as it was sampled, or its beginning."""
    if not isinstance(after, dict) or len(after) != 1:
        return bool(after == sampled)
    unparsed = after.get(CLAUDE_UNPARSED)
    if isinstance(unparsed, dict) and isinstance(raw := unparsed.get("raw"), str):
        return raw != "" and sampled.startswith(raw)
    return bool(after.get(CUSTOM) == sampled)


def _properties(name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    """What a tool's schema says of its arguments."""
    for tool in tools:
        if tool.name == name:
            schema = json.loads(tool.parameters)
            found = schema.get("properties") if isinstance(schema, dict) else None
            return found if isinstance(found, dict) else {}
    return {}


def _is_same_command(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    old, new = before.get("command"), after.get("command")
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    # It also halves the backslashes before a semicolon.
    spelled = (old, old.replace("\\\\;", "\\;"))
    if new not in spelled and not any(_is_without_change(text, new) for text in spelled):
        return False
    return _agree({**before, "command": new}, after)


def _is_without_change(old: str, new: str) -> bool:
    """Whether one `cd FOLDER && ` was taken out."""
    length = len(old) - len(new)
    differ = (at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right)
    start = next(differ, len(new))
    for _ in range(_MOST_CHANGES):
        # What was taken out begins at the first difference, or before it where text repeats.
        start = old.rfind("cd ", 0, start + len("cd "))
        if start < 0:
            return False
        gone = old[start : start + length]
        is_one = gone.endswith(" && ") and gone.count(" && ") == 1 and "\n" not in gone
        if is_one and old[:start] + old[start + length :] == new:
            return True
        start -= 1
    return False
