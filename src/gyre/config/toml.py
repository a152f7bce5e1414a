"""TOML in and out; a config written back with all defaults."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from gyre.config.run_config import RunConfig
from gyre.config.settings import Keys
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
            return f"[{', '.join(spelled(item) for item in value)}]"


def key_of(name: str) -> str:
    """Quoted where it must be."""
    return name if _BARE.fullmatch(name) else spelled(name)


def _escaped(letter: str) -> str:
    """Spelled out if it would end the text, or steer a terminal that shows it."""
    if letter in _SHORT or not letter.isprintable():
        code = ord(letter)
        return _SHORT.get(letter) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return letter


_NAME = r"[\w-]*(?:key|token|secret|password)"
_NAMED = re.compile(rf"(?i)^-*{_NAME}$")
"""An argument whose value is a secret."""
_SET = re.compile(rf"(?i)({_NAME}\s*[=:]\s*|-{_NAME}\s+|\b(?:bearer|basic)\s+)[^&\s]+")
"""Where one stands behind its name within a text, as in a command or a header."""
_LOGIN = re.compile(r"(?<=://)(?:[^/@\s]*:(?!\d+[/?#])\S*|[^/@\s]+)@")
"""A password may hold anything, and what follows a port is a path."""
HIDDEN = "..."


def as_toml(config: RunConfig, origin: Callable[[Keys], str] | None = None) -> list[str]:
    """Lines of TOML that load as the same tree; what is not set stands in a comment."""
    lines: list[str] = []
    for entry in fields(config):
        lines += ["", *_table((entry.name,), getattr(config, entry.name), origin)]
    return lines[1:]


def settings_of(config: RunConfig) -> dict[str, str | int | float | bool]:
    """Every value by its path, for others than the run: without secrets, and what is not set.

    There is no place for secrets in a run file; what looks like one is left out all the same.
    """
    return dict(pair for path, value in leaves(config) for pair in _flat(path, value))


def leaves(section: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a tree of sections by its path; a table with keys of a user's is one."""
    for entry in fields(section):
        value, path = getattr(section, entry.name), f"{above}{entry.name}"
        if is_dataclass(value):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def _flat(path: str, value: Any) -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        is_environment = path.endswith(".env")
        for name, one in value.items():
            yield from _flat(f"{path}.{name}", HIDDEN if is_environment else one)
    elif isinstance(value, str):
        yield path, _without_secrets(value)
    elif isinstance(value, bool | int | float):
        yield path, value
    elif value is not None:
        yield path, spelled([*_arguments(value)])


def _arguments(values: Iterable[Any]) -> Iterator[Any]:
    """Of a command; a secret may follow its name."""
    before: Any = None
    for item in values:
        is_secret = isinstance(before, str) and before[:1] == "-" and _NAMED.match(before)
        yield HIDDEN if is_secret else _without_secrets(item) if isinstance(item, str) else item
        before = item


def _without_secrets(text: str) -> str:
    return _LOGIN.sub("", _SET.sub(rf"\1{HIDDEN}", text))


def _table(keys: Keys, section: Any, origin: Callable[[Keys], str] | None) -> Iterator[str]:
    yield f"[{'.'.join(key_of(key) for key in keys)}]"
    inner = []
    for name, value in _items(section):
        at = (*keys, name)
        if is_dataclass(value) or (isinstance(value, Mapping) and value):
            inner.append((at, value))
            continue
        line = f"# {name} =" if value is None else f"{key_of(name)} = {spelled(value)}"
        if origin is not None:
            line += f"  # {'not set' if value is None else origin(at)}"
        yield line
    for at, value in inner:
        yield ""
        yield from _table(at, value, origin)


def _items(section: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(section, Mapping):
        yield from section.items()
    else:
        yield from ((entry.name, getattr(section, entry.name)) for entry in fields(section))
