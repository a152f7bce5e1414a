"""Virtual time: what is to happen when, ties in the order in which they were planned."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]


class EventQueue:
    """A heap of actions, and the time of the last one taken."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._planned = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, action: Action) -> None:
        heappush(self._heap, (max(time, self.now), self._planned, action))
        self._planned += 1

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def take(self) -> Action:
        """The next action, its time being now."""
        self.now, _, action = heappop(self._heap)
        return action
