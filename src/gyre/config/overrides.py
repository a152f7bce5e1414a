"""Values given beside a run file, as section.key=value, put in place of the file's own."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.config.settings import is_text_at

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideResult:
    """Plain tables with values replaced, where that was, and what could not be."""

    tables: dict[str, Any]
    places: frozenset[Keys]
    mistakes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leave:
    """The file's value is left out."""


def overridden(tables: Mapping[str, Any], overrides: Iterable[str]) -> OverrideResult:
    """The given tables stay as they are; of two values for one key the later one counts."""
    changed = _copied(tables)
    places: set[Keys] = set()
    mistakes = []
    for text in overrides:
        path, is_set, value = text.partition("=")
        keys = tuple(path.strip().split("."))
        if not _is_utf8(text):
            printable = text.encode(errors="backslashreplace").decode()
            mistakes.append(f"{printable}: expected text in UTF-8")
        elif not is_set or not all(keys):
            mistakes.append(f"{text}: expected section.key=value")
        elif problem := _put(changed, keys, value):
            mistakes.append(f"{text}: {problem}")
        else:
            places.add(keys)
    return OverrideResult(tables=changed, places=frozenset(places), mistakes=tuple(mistakes))


def _put(tables: dict[str, Any], keys: Keys, text: str) -> str | None:
    """What is wrong, or None when the value is in its place."""
    level = tables
    for depth, key in enumerate(keys[:-1], start=1):
        level = level.setdefault(key, {})
        if not isinstance(level, dict):
            return f"{'.'.join(keys[:depth])} is no table"
    value = _value(text, is_text=is_text_at(keys))
    if isinstance(value, str) and text.lstrip()[:1] in ('"', "'") and value == text:
        return "a quote that does not end"
    if isinstance(value, _Leave):
        level.pop(keys[-1], None)
    else:
        level[keys[-1]] = value
    return None


def _value(text: str, *, is_text: bool) -> Any:
    """As TOML spells it; what is no TOML is text, and so is all that can only be text."""
    if not text.strip():
        return _Leave()
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = found["value"]
    is_plain = len(found) == 1 and (isinstance(value, str) or not is_text)
    return value if is_plain else text


def _is_utf8(text: str) -> bool:
    """The shell passes other bytes on as halves of characters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value
