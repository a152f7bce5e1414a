"""Plain values and keys as TOML spells them."""

import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def spelled(value: Any) -> str:
    """A value of a file; tables are spelled in line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return f'"{_ESCAPED.sub(_escape, value)}"'
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping():
            inside = ", ".join(f"{key_of(key)} = {spelled(one)}" for key, one in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return f"[{', '.join(spelled(one) for one in value)}]"


def key_of(name: str) -> str:
    """Quoted where it must be."""
    return name if _BARE.fullmatch(name) else spelled(name)


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
