"""What describes an installable agent program; version markers.

A file beside this one describes each of them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gyre.types.call_records import Evidence

Markers = TypeVar("Markers")


def version_in(text: str, pattern: re.Pattern[str]) -> str | None:
    """The first group of the pattern where it matches the beginning of the text."""
    found = pattern.match(text)
    return found.group(1) if found else None


def user_agent_version(evidence: Evidence, pattern: re.Pattern[str]) -> str | None:
    """The version that a program names in its requests, where it names one."""
    return version_in(evidence.headers.get("user-agent", ""), pattern)


def of_version(table: Mapping[str, Markers], version: str | None) -> tuple[Markers, bool]:
    """The version's markers and True; or the newest version's, and False (counted as unknown)."""
    if version is not None and version in table:
        return table[version], True
    return table[max(table, key=_order)], False


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


COMPACT_SHARE = 0.9
"""Of the window; a conversation is summed up before it is fuller than this."""
LEAST_SHARE = 0.5
"""A conversation is not summed up before it fills so much, however long a reply may be."""

EVERYWHERE: Mapping[str, str] = {"LANG": "C.UTF-8", "TERM": "dumb"}
"""Variables of every program, so that it prints the same on every machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """How long a conversation may get, which programs must know to shorten it in time."""

    context_tokens: int
    compact_at: int
    """Where it is to be summed up."""

    @classmethod
    def of(cls, *, context_tokens: int, reply_tokens: int) -> "ContextWindow":
        """With room for a reply, as far as that is possible."""
        most = min(context_tokens - reply_tokens, int(context_tokens * COMPACT_SHARE))
        least = int(context_tokens * LEAST_SHARE)
        return cls(context_tokens=context_tokens, compact_at=max(most, least, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Npm:
    """Packages of npm's registry, each a build for this platform that needs no others."""

    packages: Mapping[str, str]
    """Folder in node_modules, and package@version with `{version}` to be filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pip:
    """Packages of Python's index, in a virtual environment of their own."""

    requirements: tuple[str, ...]
    """With `{version}` to be filled in."""


def _nothing(window: ContextWindow) -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """An agent program that is installed once per version, and run without a network."""

    name: str
    """As run files call it."""
    version: str
    """The one that runs get unless they name another."""
    source: Npm | Pip
    start: tuple[str, ...]
    """What is run; a part with a slash is a file where the program is installed."""
    flags: tuple[str, ...]
    task: tuple[str, ...]
    """How it takes the instruction, after everything else."""
    variables: Callable[[ContextWindow], dict[str, str]] = _nothing
    """Its environment besides EVERYWHERE, and address and key under their usual names."""
    home: Callable[[ContextWindow], dict[str, str]] = _nothing
    """Its files of settings, by their paths in its home."""
    asks_version: tuple[str, ...] = ("--version",)
    """What it prints its version for."""
    starts_version: tuple[str, ...] | None = None
    """What is run for that, where it is not the program itself."""
