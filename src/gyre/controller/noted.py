"""A mapping that says which of its keys were set or removed since it was asked last."""

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ChangeTrackingDict(MutableMapping[K, V]):
    """One reader asks `changed`, and is told of each change once."""

    def __init__(self) -> None:
        self._held: dict[K, V] = {}
        self._changed: dict[K, None] = {}

    def __getitem__(self, key: K) -> V:
        return self._held[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._held[key] = value
        self._changed[key] = None

    def __delitem__(self, key: K) -> None:
        del self._held[key]
        self._changed[key] = None

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def changed(self) -> list[K]:
        """Keys in the order in which they first changed; from now on there are none."""
        found = list(self._changed)
        self._changed.clear()
        return found
