"""The journal: every kind of fact with its fields, from the classes that are written there."""

import types
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import groupby
from typing import Any, NewType, Union, get_args, get_origin

from gyre.config.settings import sentence_of, settings
from gyre.journal.journal import Header, Origin, Resumed
from gyre.scheduler.messages import Event
from gyre.types.run_events import RUN_EVENTS

WORDS = {int: "integer", float: "number", bool: "bool", str: "text", Any: "anything"}
PARTS = {
    "The header": ("What stands before all facts.", (Header,)),
    "The journal's own": ("About the file itself.", (Origin, Resumed)),
    "What the scheduler hears": (
        "Told to the [scheduler](../scheduler.md) in this order, they give the same orders again.",
        get_args(Event),
    ),
    "For people and reports": (
        "What the scheduler has no use for, with the numbers that reports are made of.",
        RUN_EVENTS,
    ),
}


def lines() -> Iterator[str]:
    for heading, (sentence, kinds) in PARTS.items():
        yield from ("", f"## {heading}", "", sentence)
        for kind in kinds:
            yield from ("", f"### {kind.__name__}", "", sentence_of(kind))
            yield from _fields(kind)


def _fields(kind: type) -> Iterator[str]:
    found = settings(kind)
    if not found:
        return
    yield from ("", "| field | value | what it is |", "|---|---|---|")
    for (value, says), alike in groupby(found.values(), lambda one: (worded(one.type), one.says)):
        names = ", ".join(f"`{one.name}`" for one in alike)
        yield f"| {names} | {value} | {says} |".replace("*", "\\*")


def worded(annotation: Any) -> str:
    """A type in words."""
    if annotation in WORDS:
        return WORDS[annotation]
    if annotation is type(None):
        return "null"
    if isinstance(annotation, NewType):
        return worded(annotation.__supertype__)
    inside, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(map(worded, inside))
    if origin is tuple:
        return f"list of {worded(inside[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"{worded(inside[1])} by {worded(inside[0])}"
    if issubclass(annotation, Enum):
        return "one of " + ", ".join(f"`{one.value}`" for one in annotation)
    return f"({', '.join(f'`{name}`' for name in settings(annotation))})"
