"""What of a story is looked at, and rows as columns of plain values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewWindow:
    """What is looked at: a moment, and the window that pictures show."""

    at_s: float
    from_s: float
    to_s: float
    """Not after the moment."""
    points: int = 600
    """Rows of a picture, about."""


def columns(
    rows: Sequence[Row], values: Mapping[str, Callable[[Row], Any]]
) -> dict[str, list[Any]]:
    """Rows as one list for each name."""
    return {name: [value(one) for one in rows] for name, value in values.items()}


def named(*names: str) -> dict[str, Callable[[Any], Any]]:
    """Columns that are called as the fields of their rows."""
    return {name: attrgetter(name) for name in names}
