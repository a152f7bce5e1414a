"""The trajectory buffer: groups from admission to the step that consumes them.

Rule 1: a group is consumed by one step, which may be replayed but is never taken back.
"""

from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Generic, TypeVar

from gyre.types.errors import InternalError

Kept = TypeVar("Kept")
"""What an execution leaves for the trainer: a record and its reward, or only a size."""


class GroupStage(Enum):
    """How far a group has come on its way to a step."""

    OPEN = "open"
    """Its executions close one by one."""
    READY = "ready"
    ASSIGNED = "assigned"
    """The batch in hand has pulled it (SPEC 3.4)."""
    CONSUMED = "consumed"
    """A step was taken with it; it is kept until a durable checkpoint covers that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroup(Generic[Kept]):
    """A group whose executions are all closed, ready for a batch."""

    number: int
    version: int
    """v_d: the version last published when it was admitted."""
    kept: tuple[Kept | None, ...]
    """Per execution, in the order of members; None where nothing is left to train on."""
    is_void: bool
    """Too few valid rewards: it counts as a group of its batch, with all advantages 0."""


@dataclass(slots=True)
class _Entry(Generic[Kept]):
    version: int
    kept: list[Kept | None]
    open_members: set[int]
    is_void: bool = False
    stage: GroupStage = GroupStage.OPEN


class GroupBuffer(Generic[Kept]):
    """Groups by number, with what their executions left; the scheduler says which are ready."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[Kept]] = {}
        self._ready: list[tuple[int, int]] = []
        """A heap of (version, number); groups that have left it otherwise are skipped later."""
        self._assigned: dict[int, None] = {}
        """In order of assignment."""
        self._steps: dict[int, tuple[int, ...]] = {}
        """Groups that each step consumed, in order, until a durable checkpoint covers it."""

    @property
    def assigned(self) -> tuple[int, ...]:
        """Groups of the batch in hand, in the order in which it pulled them."""
        return tuple(self._assigned)

    def stage(self, number: int) -> GroupStage | None:
        """None for a group that was never admitted, or is forgotten."""
        entry = self._entries.get(number)
        return None if entry is None else entry.stage

    def admit(self, number: int, *, version: int, size: int) -> None:
        """Adds a group of `size` executions with surplus, dispatched under a published version."""
        if number in self._entries:
            raise InternalError(f"group {number}: admitted twice")
        if size < 1:
            raise InternalError(f"group {number}: admitted with {size} executions")
        self._entries[number] = _Entry(version, [None] * size, set(range(size)))

    def close(self, number: int, member: int, kept: Kept | None) -> None:
        """Keeps what a closed execution left."""
        entry = self._entry(number, GroupStage.OPEN)
        if member not in entry.open_members:
            raise InternalError(f"group {number}: execution {member} closed twice or is no member")
        entry.open_members.remove(member)
        entry.kept[member] = kept

    def offer(self, number: int, *, is_void: bool) -> None:
        """Marks the group ready, which it cannot be before all its executions closed (SPEC 6.5)."""
        entry = self._entry(number, GroupStage.OPEN)
        if entry.open_members:
            waiting = ", ".join(map(str, sorted(entry.open_members)))
            raise InternalError(f"group {number}: ready before executions {waiting} closed")
        entry.is_void = is_void
        entry.stage = GroupStage.READY
        heappush(self._ready, (entry.version, number))

    def oldest(self) -> int | None:
        """The ready group of the oldest version, the lowest number among equals."""
        while self._ready:
            _, number = self._ready[0]
            if self.stage(number) is GroupStage.READY:
                return number
            heappop(self._ready)
        return None

    def assign(self, number: int) -> ReadyGroup[Kept]:
        """Makes a ready group part of the open batch."""
        entry = self._entry(number, GroupStage.READY)
        if self._ready[0][1] == number:
            heappop(self._ready)
        entry.stage = GroupStage.ASSIGNED
        self._assigned[number] = None
        return self._group(number, entry)

    def assigned_group(self, number: int) -> ReadyGroup[Kept]:
        """A group of the open batch, once more."""
        return self._group(number, self._entry(number, GroupStage.ASSIGNED))

    def consume(self, step: int) -> tuple[ReadyGroup[Kept], ...]:
        """Consumes all assigned groups by the step from version `step`."""
        if step in self._steps:
            raise InternalError(f"step {step}: taken twice")
        self._steps[step] = tuple(self._assigned)
        for number in self._assigned:
            self._entries[number].stage = GroupStage.CONSUMED
        self._assigned.clear()
        return self.consumed_by(step)

    def consumed_by(self, step: int) -> tuple[ReadyGroup[Kept], ...]:
        """The groups of a step that no durable checkpoint covers yet, in the order it had them."""
        if step not in self._steps:
            raise InternalError(f"step {step}: not taken, or forgotten")
        return tuple(self._group(number, self._entries[number]) for number in self._steps[step])

    def forget(self, version: int) -> None:
        """This version is durable: the steps that led to it need no replay."""
        for step in [step for step in self._steps if step < version]:
            for number in self._steps.pop(step):
                del self._entries[number]

    def _entry(self, number: int, stage: GroupStage) -> _Entry[Kept]:
        found = self.stage(number)
        if found is not stage:
            what = "unknown" if found is None else found.value
            raise InternalError(f"group {number}: is {what}, not {stage.value}")
        return self._entries[number]

    def _group(self, number: int, entry: _Entry[Kept]) -> ReadyGroup[Kept]:
        kept = tuple(entry.kept)
        return ReadyGroup(number=number, version=entry.version, kept=kept, is_void=entry.is_void)
