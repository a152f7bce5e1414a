"""Markers of a harness by its version, with the newest ones for versions nobody has looked at."""

import re
from collections.abc import Mapping
from typing import TypeVar

Markers = TypeVar("Markers")


def version_in(text: str, pattern: re.Pattern[str]) -> str | None:
    """The first group of the pattern where it matches the beginning of the text."""
    found = pattern.match(text)
    return found.group(1) if found else None


def of_version(table: Mapping[str, Markers], version: str | None) -> tuple[Markers, bool]:
    """The version's markers and True; or the newest version's, and False (counted as unknown)."""
    if version is not None and version in table:
        return table[version], True
    return table[max(table, key=_order)], False


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
