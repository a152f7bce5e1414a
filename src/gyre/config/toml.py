"""TOML: files read as plain tables, and plain values and keys as they are spelled in one."""

import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from gyre.types.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def read(path: Path, *, expected: str) -> dict[str, Any]:
    """The tables of a file; ConfigError with what was expected, where there is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected {expected}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # No TOML, no UTF-8, or a number of thousands of digits.
        raise ConfigError(f"{path}: not TOML: {error}") from error


def spelled(value: Any) -> str:
    """A value of a file; tables are spelled in line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return f'"{"".join(map(_escaped, value))}"'
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


def _escaped(letter: str) -> str:
    """Spelled out if it would end the text, or steer a terminal that shows it."""
    if letter in _SHORT or not letter.isprintable():
        code = ord(letter)
        return _SHORT.get(letter) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return letter
