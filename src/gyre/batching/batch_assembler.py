"""The packing buffer: takes ready groups into the batch one by one, as cells run out of claims."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from gyre.batching.group_buffer import GroupBuffer, Kept, ReadyGroup
from gyre.batching.work_queue import CORE, Found, MicroStepQueue, QueuedClaim, Work
from gyre.types.errors import InternalError


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
