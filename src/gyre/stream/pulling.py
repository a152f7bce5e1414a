"""The packing buffer: ready groups enter the batch one at a time, when cells run out of claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from gyre.stream.groups import Group, GroupBuffer, Kept
from gyre.stream.microsteps import CORE, Found, MicroSteps, Offer, Work
from gyre.words.errors import BrokenPromise


@dataclass(slots=True)
class _Batch:
    step: int
    num_pulled: int = 0
    unpacked: int | None = None
    """The group that is being made into claims."""


class PackingBuffer(Generic[Kept, Work, Found]):
    """A batch in the making, between the trajectory buffer and the queue (SPEC 3.4)."""

    def __init__(
        self,
        groups: GroupBuffer[Kept],
        queue: MicroSteps[Work, Found],
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
        """The batch of the step from version `step` begins; the one before it is over."""
        if self._batch is not None:
            raise BrokenPromise(f"batch {step}: batch {self._batch.step} is still open")
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

    def pull(self) -> Group[Kept] | None:
        """The oldest ready group, if one is wanted: it is assigned, and `pack` must follow."""
        if self._batch is None or not self.wants_group:
            return None
        number = self._groups.oldest()
        if number is None:
            return None
        self._batch.num_pulled += 1
        self._batch.unpacked = number
        return self._groups.assign(number)

    def pack(self, number: int, offers: Sequence[Offer[Work]]) -> None:
        """The claims that a pulled group became; a void group becomes none."""
        if self._batch is None or self._batch.unpacked != number:
            raise BrokenPromise(f"group {number}: packed without having been pulled")
        self._batch.unpacked = None
        self._queue.offer(offers)

    def stepped(self) -> tuple[Group[Kept], ...]:
        """The update is made: the batch's groups are consumed, and another batch may open."""
        if self._batch is None or not self.may_step:
            raise BrokenPromise(f"batch {self.step}: stepped before all its claims were summed")
        consumed = self._groups.consume(self._batch.step)
        self._queue.clear()
        self._batch = None
        return consumed

    def give_up(self, version: int) -> tuple[int, ...]:
        """The weights are again of this version: groups that are ready again."""
        self._queue.clear()
        self._batch = None
        return self._groups.rewind(version)
