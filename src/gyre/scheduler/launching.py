"""In which order queued groups launch, and the queue that keeps it."""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import ClassVar

from gyre.types.ids import GroupId

Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestFirst:
    """By version, then in the order of dispatch (SPEC 1.3)."""

    waits_for_estimates: ClassVar[bool] = False

    def rank(self, *, version: int, group: GroupId, estimate_s: float | None) -> Rank:
        return (version, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestFirst:
    """By version, then the longest estimate, so that the long ones do not end last.

    A group without an estimate goes before the others, because it may be the longest.
    """

    waits_for_estimates: ClassVar[bool] = True
    """Nothing launches while an admission is unanswered, or the first to be answered would."""

    def rank(self, *, version: int, group: GroupId, estimate_s: float | None) -> Rank:
        return (version, -inf if estimate_s is None else -estimate_s, group)


LaunchOrder = OldestFirst | LongestFirst


class LaunchQueue:
    """Groups with executions to launch, the next one first; a group launches whole (SPEC 1.3)."""

    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self._heap: list[tuple[Rank, GroupId]] = []

    def add(self, group: GroupId, *, version: int, estimate_s: float | None) -> None:
        rank = self._order.rank(version=version, group=group, estimate_s=estimate_s)
        heappush(self._heap, (rank, group))

    def first(self) -> GroupId | None:
        return self._heap[0][1] if self._heap else None

    def drop_first(self) -> None:
        heappop(self._heap)
