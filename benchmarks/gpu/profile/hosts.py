"""Seconds of a host's work by its parts, taken around functions as they are called."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Place = tuple[Any, str, str]
"""A module or a class, the name of a function in it, and what the function's seconds are called."""


@dataclass
class Seconds:
    """By part: how often it was called, and how long it took in all, parts within it included."""

    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def around(self, work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                spent = time.perf_counter() - began
                self.seconds[part] = self.seconds.get(part, 0.0) + spent
                self.calls[part] = self.calls.get(part, 0) + 1

        return timed


@contextmanager
def taken(*places: Place) -> Iterator[Seconds]:
    """While it lasts, every call of these functions counts."""
    found = Seconds()
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, part in places:
        setattr(owner, name, found.around(getattr(owner, name), part))
    try:
        yield found
    finally:
        for owner, name, work in before:
            setattr(owner, name, work)
