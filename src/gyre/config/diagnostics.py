"""What is wrong with a run file, in one line each: where, what was found, what is expected."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal

from gyre.config.sections import Bounds
from gyre.config.settings import (
    PRESET,
    Section,
    Setting,
    choices_of,
    marks_of,
    parts_of,
    settings,
    tables,
)
from gyre.config.toml import key_of, spelled

MOST_LETTERS = 60

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidValue:
    """Something in a table that cannot be."""

    why: Literal["unknown", "missing", "wrong"]
    place: Place
    """Keys and positions that lead to it."""
    setting: Setting | None
    """What should be there; None for an unknown key."""
    section: Section | None
    """The table it is in; None at the top."""
    found: Any
    is_inside: bool = False
    """It is an item of what should be there."""


def said(refused: InvalidValue) -> str:
    """The line for one refusal."""
    path = path_of(refused.place)
    if refused.setting is None:
        return unknown(path, refused.section)
    if refused.why == "missing":
        return f"{path}: missing; expected {refused.setting.expected}"
    if refused.is_inside:
        return f"{path}: expected {refused.setting.expected_inside}, found {shown(refused.found)}"
    expected = refused.setting.expected
    if isinstance(refused.found, float) and not isfinite(refused.found):
        expected = expected.replace("a number", "a finite number")
    line = f"{path}: expected {expected}, found {shown(refused.found)}"
    near = _nearest_value(refused.setting.type, refused.found)
    return line if near is None else f"{line}; nearest: {spelled(near)}"


def unknown(path: str, section: Section | None) -> str:
    """The line for a key that is not there; `section` is None for a table of the file."""
    name = path.rpartition(".")[2]
    known = [*tables(), PRESET] if section is None else list(settings(section))
    parts = [f"{path}: unknown {'table' if section is None else 'key'}"]
    if elsewhere := _elsewhere(name):
        parts.append(f"there is {' and '.join(elsewhere)}")
    elif near := nearest(name, known):
        parts.append(f"nearest: {near}")
    parts.append(f"known here: {', '.join(known)}")
    return "; ".join(parts)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    found = get_close_matches(name.lower(), list(known), n=1)
    return found[0] if found else None


def path_of(place: Place) -> str:
    """`cells.standalone[1]`."""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{key_of(step)}" if path else key_of(step)
    return path


def shown(found: Any) -> str:
    """As TOML spells it, and not longer than a line."""
    text = spelled(found)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def _elsewhere(name: str) -> list[str]:
    """The same key in other tables, when they are few enough to be meant."""
    found = [
        f"{table}.{name}"
        for table, one in tables().items()
        if any(name in settings(section) for section in one.sections)
    ]
    return found if len(found) == 1 else []


def _nearest_value(annotation: Any, found: Any) -> Any:
    """The valid value that was probably meant; None where there is none."""
    if isinstance(found, str):
        return nearest(found, choices_of(annotation))
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    (first, *_) = parts_of(annotation)
    for mark in marks_of(first):
        if isinstance(mark, Bounds):
            if mark.least is not None and found < mark.least:
                return mark.least
            if mark.most is not None and found > mark.most:
                return mark.most
    is_whole = int in (first, getattr(first, "__origin__", None))
    return round(found) if is_whole and isinstance(found, float) else None
