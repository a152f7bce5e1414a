"""Cells in training: groups pulled lazily into a batch, claims done at a cost, updates.

Rule 1: groups and claims go through the very buffers that a live run uses (SPEC 3.2, 3.4).
Rule 2: a satellite claims nothing before it has pulled the core's weights (SPEC 3.1).
"""

from collections import deque
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf

from gyre.batching.group_buffer import BatchAssembler, GroupBuffer
from gyre.batching.work_queue import CORE, MicroStepQueue, QueuedClaim
from gyre.scheduler.messages import Event, GroupAssigned, OfferGroup, StepTaken
from gyre.simulator.engines import Action, EventQueue
from gyre.simulator.scenario import Scenario
from gyre.simulator.workload import ClaimSize, SimulatedExecution, sizes
from gyre.types.ids import CellId, GroupId


@dataclass(frozen=True, slots=True)
class _Claimed:
    lease: int
    since_s: float


@dataclass(frozen=True, slots=True)
class _Pull:
    end_s: float
    then: Action


class SimulatedTrainer:
    """The training half of a simulated run: batches, the micro-step queue, cells that claim."""

    def __init__(self, agenda: EventQueue, scenario: Scenario, inbox: deque[Event]) -> None:
        """`inbox` is the scheduler's."""
        self._agenda = agenda
        self._scenario = scenario
        self._costs = scenario.costs
        self._inbox = inbox
        self._groups: GroupBuffer[SimulatedExecution] = GroupBuffer()
        self._queue: MicroStepQueue[ClaimSize, None] = MicroStepQueue(lease_s=inf)
        self._packing = BatchAssembler(
            self._groups, self._queue, groups_per_batch=scenario.shape.groups_per_batch
        )
        self._joined: set[int] = set()
        self._parked: set[int] = set()
        self._claimed: dict[int, _Claimed] = {}
        self._idle: set[int] = set()
        self._idle_order: list[int] = []
        """A heap of cells; those that are idle no more are skipped."""
        self._pulls: dict[int, _Pull] = {}
        self._late: dict[int, Action] = {}
        """Satellites that pull after the update, and what follows."""
        self._update: int | None = None
        """Numbers the update under way."""
        self._num_updates = 0
        self._took_part: set[int] = set()
        self.busy_s = 0.0
        """Time that cells spent on claims that are over."""
        self.num_done = 0
        self.num_returned = 0
        self.num_cells_of_step = 0
        """Cells whose gradients the last update summed."""

    def admit(self, group: GroupId, *, version: int, size: int) -> None:
        self._groups.admit(group, version=version, size=size)

    def close(self, group: GroupId, member: int, kept: SimulatedExecution | None) -> None:
        self._groups.close(group, member, kept)

    def offer(self, command: OfferGroup) -> None:
        self._groups.offer(command.group, is_void=command.is_void)
        self._feed()

    def open(self, step: int) -> None:
        self._packing.open(step)
        self._took_part.clear()
        self._feed()

    def forget(self, version: int) -> None:
        self._groups.forget(version)

    def pull(self, cell: CellId, then: Action) -> None:
        """A satellite copies the core's weights, now or after the update that is under way."""
        if self._update is not None:
            self._late[cell] = then
        else:
            self._begin_pull(cell, then)

    def join(self, cell: CellId) -> None:
        """The cell may claim; a core that was parked goes on with the sum it kept."""
        if cell in self._parked:
            self._parked.remove(cell)
            self._queue.resume(cell)
        else:
            self._queue.join(cell, self._agenda.now)
        self._joined.add(cell)
        self._rest(cell)

    def leave(self, cell: CellId, *, parks: bool = False) -> None:
        """The cell goes home or died; its claims return, and all it held unless it parks."""
        self._pulls.pop(cell, None)
        self._late.pop(cell, None)
        self._idle.discard(cell)
        if (claimed := self._claimed.pop(cell, None)) is not None:
            self.busy_s += self._agenda.now - claimed.since_s
        if cell == CORE:
            self._update = None
        if cell in self._joined:
            self._joined.remove(cell)
            returned = self._queue.park(cell) if parks else self._queue.leave(cell)
            if parks:
                self._parked.add(cell)
            self.num_returned += len(returned)
        elif cell in self._parked and not parks:
            self._parked.remove(cell)
            self.num_returned += len(self._queue.leave(cell))
        self._feed()

    def busy_until(self, now: float) -> float:
        """Time spent on claims, those under way included."""
        return self.busy_s + sum(now - claim.since_s for claim in self._claimed.values())

    def _feed(self) -> None:
        """Cells claim while there are claims, and groups are pulled while they are wanted."""
        if self._update is not None:
            return
        while True:
            while self._queue.num_unclaimed and (cell := self._next_idle()) is not None:
                self._claim(cell)
            group = self._packing.pull()
            if group is None:
                break
            step = self._packing.step
            assert step is not None
            self._inbox.append(GroupAssigned(group=GroupId(group.number), step=step))
            kept = [execution for execution in group.kept if execution is not None]
            works = () if group.is_void else sizes(kept, per_claim=self._per_claim)
            self._packing.pack(group.number, [QueuedClaim(work=work) for work in works])
        if self._packing.is_closed and self._queue.is_done and CORE in self._joined:
            self._begin_update()

    @property
    def _per_claim(self) -> int:
        return self._scenario.executions_per_claim

    def _next_idle(self) -> int | None:
        while self._idle_order:
            cell = heappop(self._idle_order)
            if cell in self._idle:
                self._idle.remove(cell)
                return cell
        return None

    def _claim(self, cell: int) -> None:
        lease = self._queue.claim(cell, self._agenda.now)
        assert lease is not None
        self._claimed[cell] = _Claimed(lease.lease, self._agenda.now)
        seconds = self._costs.training.seconds(lease.work, nodes=self._scenario.nodes_per_cell)
        self._agenda.after(seconds, partial(self._done, cell, lease.lease))

    def _done(self, cell: int, lease: int) -> None:
        claimed = self._claimed.get(cell)
        if claimed is None or claimed.lease != lease:
            return
        self._queue.done(lease)
        del self._claimed[cell]
        self.busy_s += self._agenda.now - claimed.since_s
        self.num_done += 1
        self._took_part.add(cell)
        self._rest(cell)

    def _rest(self, cell: int) -> None:
        if cell in self._joined:
            self._idle.add(cell)
            heappush(self._idle_order, cell)
            self._feed()

    def _begin_update(self) -> None:
        """Gradients are summed; pulls that end soon are waited for, others begin again after."""
        for cell in sorted(self._joined - {CORE}):
            self._queue.reduce(cell, self._queue.holds(cell))
        now = self._agenda.now
        self._num_updates += 1
        self._update = self._num_updates
        start_s = now
        for cell, pull in sorted(self._pulls.items()):
            if pull.end_s <= now + self._scenario.join_s:
                start_s = max(start_s, pull.end_s)
            else:
                self._late[cell] = self._pulls.pop(cell).then
        end_s = start_s + self._costs.update_s
        self._agenda.at(end_s, partial(self._updated, self._num_updates))

    def _updated(self, number: int) -> None:
        if self._update != number:
            return
        step = self._packing.step
        assert step is not None
        self._update = None
        self.num_cells_of_step = len(self._took_part)
        self._packing.stepped()
        self._inbox.append(StepTaken(step=step))
        late, self._late = self._late, {}
        for cell, then in late.items():
            self._begin_pull(cell, then)
        if self._costs.pull_s:
            for cell in sorted(self._joined - {CORE}):
                self._idle.discard(cell)
                self._begin_pull(cell, partial(self._rest, cell))

    def _begin_pull(self, cell: int, then: Action) -> None:
        pull = _Pull(self._agenda.now + self._costs.pull_s, then)
        self._pulls[cell] = pull
        self._agenda.at(pull.end_s, partial(self._pulled, cell, pull))

    def _pulled(self, cell: int, pull: _Pull) -> None:
        if self._pulls.get(cell) is pull:
            del self._pulls[cell]
            pull.then()
