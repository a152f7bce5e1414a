"""Placement, dispatch and launch order, and every inequality they decide by.

Rule 1: an inequality is one named function of numbers, so that it can be read beside its equation
and tried with one that is wrong.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import ClassVar

from gyre.scheduler.cells import Cells, CellState
from gyre.types.ids import CellId, GroupId


def executions_to_launch(*, queued: int, capacity: int, occupied: int) -> int:
    """What fills the free slots, and not more (eq:rollout-launch)."""
    return max(0, min(queued, capacity - occupied))


def may_enter_training(*, waterlevel: int, capacity: int, leaving: int) -> bool:
    """The capacity that remains without the cells that leave covers all that is outstanding
    (eq:cell-admission)."""
    return waterlevel <= capacity - leaving


def may_stay(*, ready: int, needed: int, waterlevel: int, dispatching: int, capacity: int) -> bool:
    """The core has a next batch to begin and is not missed in rollout (eq:core-retention)."""
    return ready >= needed and waterlevel + dispatching <= capacity


def supply(*, ready: int, needed: int) -> int:
    """Ready unassigned groups, as far as the batch has use for them (sec:burst-dispatch)."""
    return min(ready, needed)


def has_dwelt(*, since: float | None, dwell_s: float, now: float) -> bool:
    """Supply has held for tau without interruption (sec:burst-dispatch)."""
    return since is not None and now >= since + dwell_s


def ends_burst(*, version: int, steps_per_burst: int) -> bool:
    """The update that led to this version was the last of its burst."""
    return version % steps_per_burst == 0


def goes_home(state: CellState) -> bool:
    """A satellite in training at the end of a burst, or still on its way there (SPEC 2.2)."""
    return state in (CellState.TRAINING, CellState.ENTERING)


def groups_to_admit(*, wanted: int, outstanding: int, groups_left: int | None) -> int:
    """What the dispatch asks for, as far as the steps that are left need it (SPEC 1.6)."""
    if groups_left is None:
        return wanted
    return max(0, min(wanted, groups_left - outstanding))


def may_start_evaluation(*, waterlevel: int, capacity: int, cells_away: int) -> bool:
    """While cells are away an evaluation must not lift the waterlevel above what is left."""
    return cells_away == 0 or waterlevel + 1 <= capacity


def is_void(*, counted: int, min_valid: int) -> bool:
    """A group has too few rewards to compare (SPEC 6.5)."""
    return counted < min_valid


def too_many_void(*, void: int, window: int, max_void: float) -> bool:
    """Of the last groups to close, too large a part was void (SPEC 6.5)."""
    return void > max_void * window


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
