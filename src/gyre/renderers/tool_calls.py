"""Tool calls written as JSON: a name and arguments, the latter exactly as the model wrote them."""

import json
from typing import Any, NoReturn


def read_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of `{"name": ..., "arguments": {...}}`; None for anything else."""
    try:
        members = _members(text)
        name, spelled = members.get("name", ("", ""))
        value, written = members.get("arguments", members.get("parameters", (None, "")))
        if written.startswith('"'):
            # Arguments quoted once more, as some models do: what is inside the quotes.
            value, written = _decoder.decode(value), value
    except (ValueError, RecursionError):
        return None
    if not name or not spelled.startswith('"'):
        return None
    if value is None:
        return name, "{}"
    return (name, written) if isinstance(value, dict) else None


def write_call(name: str, arguments: str) -> str:
    """What `read_call` reads, with arguments that need not be JSON."""
    quoted = json.dumps(name, ensure_ascii=False)
    return f'{{"name": {quoted}, "arguments": {_as_value(arguments)}}}'


def as_json(value: Any) -> str | None:
    """JSON text of a parsed object; None when it is no object, or none that JSON can say."""
    if not isinstance(value, dict):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if text.isascii():
            return text
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return None
    return text


def _as_value(arguments: str) -> str:
    stripped = arguments.strip()
    if not stripped:
        return "{}"
    try:
        _decoder.decode(stripped)
    except (ValueError, RecursionError):
        return json.dumps(arguments, ensure_ascii=False)
    return stripped


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """The members of the one object that the text is: each value, and what spells it."""
    at = _past(text, _blank(text, 0), "{")
    members: dict[str, tuple[Any, str]] = {}
    more = text[_blank(text, at) : _blank(text, at) + 1] != "}"
    while more:
        key, at = _decoder.raw_decode(text, _blank(text, at))
        if not isinstance(key, str):
            _refuse(text)
        start = _blank(text, _past(text, _blank(text, at), ":"))
        value, at = _decoder.raw_decode(text, start)
        members[key] = value, text[start:at]
        at = _blank(text, at)
        more = text[at : at + 1] == ","
        at += more
    if text[_past(text, _blank(text, at), "}") :].strip():
        _refuse(text)
    return members


def _blank(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANKS:
        at += 1
    return at


def _past(text: str, at: int, expected: str) -> int:
    if text[at : at + 1] != expected:
        _refuse(text)
    return at + 1


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"no JSON object: {text[:80]!r}")


_BLANKS = frozenset(" \t\r\n")
# Numbers stay text, so that thousands of digits cost nothing; NaN is Python's, not JSON's.
_decoder = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
