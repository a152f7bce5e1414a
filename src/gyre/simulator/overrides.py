"""Values given beside a file, as section.key=value, put in place of the file's own."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOverrides:
    """Plain tables with values replaced, and what could not be."""

    tables: dict[str, Any]
    mistakes: tuple[str, ...]


def overridden(tables: Mapping[str, Any], overrides: Iterable[str]) -> ScenarioOverrides:
    """The given tables stay as they are."""
    changed = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()
    }
    mistakes = []
    for text in overrides:
        path, is_set, value = text.partition("=")
        section, is_inside, key = path.partition(".")
        if not (is_set and section) or (is_inside and not key):
            mistakes.append(f"{text}: expected section.key=value")
        elif not is_inside:
            changed[section] = _value(value)
        elif not isinstance(changed.setdefault(section, {}), dict):
            mistakes.append(f"{text}: {section} is no table")
        else:
            changed[section][key] = _value(value)
    return ScenarioOverrides(tables=changed, mistakes=tuple(mistakes))


def _value(text: str) -> Any:
    """As TOML spells it; what is no TOML is text, so that names need no quotes."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text
