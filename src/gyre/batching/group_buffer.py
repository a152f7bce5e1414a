"""The trajectory buffer holds groups until a step consumes them; the packing buffer pulls them.

Rule 1: a group is consumed by one step, which may be replayed but is never taken back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Generic, TypeVar

from gyre.batching.work_queue import CORE, Found, MicroStepQueue, QueuedClaim, Work
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


@dataclass(slots=True)
class _Batch:
    step: int
    num_pulled: int = 0
    waiting: deque[int] = field(default_factory=deque)
    """Groups that are yet to be made into claims: one, or more of a batch that is recalled."""

    @property
    def unpacked(self) -> int | None:
        """The group that is next made into claims."""
        return self.waiting[0] if self.waiting else None


class BatchAssembler(Generic[Kept, Work, Found]):
    """Moves ready groups into the open batch, and their claims into the queue (SPEC 3.4)."""

    def __init__(
        self,
        groups: GroupBuffer[Kept],
        queue: MicroStepQueue[Work, Found],
        *,
        groups_per_batch: int,
    ) -> None:
        self._groups = groups
        self._queue = queue
        self._groups_per_batch = groups_per_batch
        self._batch: _Batch | None = None

    @property
    def step(self) -> int | None:
        """The step whose batch is open."""
        return None if self._batch is None else self._batch.step

    @property
    def num_needed(self) -> int:
        """Groups that the open batch has yet to pull."""
        return 0 if self._batch is None else self._groups_per_batch - self._batch.num_pulled

    @property
    def is_closed(self) -> bool:
        """All claims of the batch's B groups are in the queue."""
        batch = self._batch
        return batch is not None and self.num_needed == 0 and batch.unpacked is None

    @property
    def may_step(self) -> bool:
        return self.is_closed and self._queue.is_reduced and self._queue.trains(CORE)

    def open(self, step: int) -> None:
        """Begins the batch of the step from version `step`; the one before it is over."""
        if self._batch is not None:
            raise InternalError(f"batch {step}: batch {self._batch.step} is still open")
        self._batch = _Batch(step)

    @property
    def wants_group(self) -> bool:
        """Whether a ready group would be pulled now."""
        return (
            self._batch is not None
            and self._batch.unpacked is None
            and self.num_needed > 0
            and self._queue.trains(CORE)
            and self._queue.num_unclaimed < self._queue.num_cells
        )

    def pull(self) -> ReadyGroup[Kept] | None:
        """Assigns and returns the oldest ready group, if one is wanted; `pack` must follow."""
        number = self._groups.oldest() if self.wants_group else None
        return None if number is None else self._take(number)

    def recall(self, number: int, step: int) -> None:
        """Assigns a group that was pulled before the controller's restart; `pack` must follow."""
        if self.step != step or not self.num_needed:
            raise InternalError(f"group {number}: recalled for step {step}, which wants none")
        self._take(number)

    @property
    def unpacked(self) -> ReadyGroup[Kept] | None:
        """The next group to be made into claims."""
        if self._batch is None or self._batch.unpacked is None:
            return None
        return self._groups.assigned_group(self._batch.unpacked)

    def pack(self, number: int, offers: Sequence[QueuedClaim[Work, Found]]) -> None:
        """Queues the claims that a pulled group became; a void group becomes none."""
        if self._batch is None or self._batch.unpacked != number:
            raise InternalError(f"group {number}: packed without having been pulled")
        self._batch.waiting.popleft()
        self._queue.offer(offers)

    def stepped(self) -> tuple[ReadyGroup[Kept], ...]:
        """Consumes the batch's groups after its update, so that another batch may open."""
        if not self.may_step:
            raise InternalError(f"batch {self.step}: stepped before all its claims were summed")
        self._queue.clear()
        return self._close()

    def recall_step(self) -> tuple[ReadyGroup[Kept], ...]:
        """Consumes the groups of an update that was made before the controller's restart."""
        if self._batch is None or self.num_needed:
            raise InternalError(f"batch {self.step}: {self.num_needed} groups short of its step")
        return self._close()

    def _take(self, number: int) -> ReadyGroup[Kept]:
        assert self._batch is not None
        group = self._groups.assign(number)
        self._batch.num_pulled += 1
        self._batch.waiting.append(number)
        return group

    def _close(self) -> tuple[ReadyGroup[Kept], ...]:
        assert self._batch is not None
        consumed = self._groups.consume(self._batch.step)
        self._batch = None
        return consumed
