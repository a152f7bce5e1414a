"""Placement (elastic, async, colocate), dispatch (boundary, continuous), launch order."""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import ClassVar

from gyre.scheduler.cells import Cells
from gyre.types.ids import CellId, GroupId

TOLERANCE = 1e-9
"""A product of two floats this near a whole number is taken for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """(phi + mu) * B groups at the start, mu * B after each publication (SPEC 1.1)."""

    extra_dispatch: float = 0.5
    """phi, in batches; phi * B is whole."""

    def at_start(self, *, batch: int, burst: int) -> int:
        """`batch` is B and `burst` mu * B, in groups."""
        return round(self.extra_dispatch * batch) + burst

    def at_publication(self, *, burst: int) -> int:
        return burst

    def at_ready(self) -> int:
        return 0

    def standing_groups(self) -> int:
        """Groups whose slots are reserved although they are not admitted yet."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """A fixed number of unfinished groups, each replaced as soon as it is ready (SPEC 1.5)."""

    depth: int
    """Q_c."""

    def at_start(self, *, batch: int, burst: int) -> int:
        return self.depth

    def at_publication(self, *, burst: int) -> int:
        return 0

    def at_ready(self) -> int:
        return 1

    def standing_groups(self) -> int:
        return self.depth


Dispatch = Boundary | Continuous


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Cells enter one by one, core first, as the waterlevel falls (SPEC 2.1)."""

    streaming: bool = True
    """Training begins with the first ready groups; else with all groups of a burst."""
    cells_serve: ClassVar[bool] = True
    keeps_core: ClassVar[bool] = True
    """The core may stay in training over a publication."""
    pauses: ClassVar[bool] = False

    def next_to_enter(self, cells: Cells) -> tuple[CellId, ...]:
        cell = cells.next_in_order()
        return () if cell is None else (cell,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Async:
    """A fixed split: cells train from the start, standalone engines serve (SPEC 9)."""

    streaming: bool = True
    cells_serve: ClassVar[bool] = False
    keeps_core: ClassVar[bool] = True
    pauses: ClassVar[bool] = False

    def next_to_enter(self, cells: Cells) -> tuple[CellId, ...]:
        """A cell that comes back from the dead."""
        return cells.all_home()[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocate:
    """The whole pool enters and leaves together, beside standalone engines if any (SPEC 9)."""

    streaming: bool = True
    cells_serve: ClassVar[bool] = True
    keeps_core: ClassVar[bool] = False
    pauses: ClassVar[bool] = False

    def next_to_enter(self, cells: Cells) -> tuple[CellId, ...]:
        return cells.all_home()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable(Colocate):
    """Colocate that pauses live executions while it trains: the paper's idealised reference.

    No real harness can be paused, so only a simulation has it (SPEC 1.5). It enters when all
    groups of a burst are ready, because no other becomes so while everything stands still.
    """

    streaming: bool = False
    pauses: ClassVar[bool] = True


Placement = Elastic | Async | Colocate | Resumable
