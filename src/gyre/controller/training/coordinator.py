"""Where cells train: groups become claims, cells do them, and every full batch becomes a step.

Rule 1: groups, leases and sums go through the buffers of batching/, which the simulator uses too.
Rule 2: while an update is under way no cell claims, joins, pulls or leaves (SPEC 3.1, 3.3).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

from gyre.aio import ChangeSignal
from gyre.batching.group_buffer import BatchAssembler, GroupBuffer
from gyre.batching.group_packer import ClosedExecution, EncodedClaim, GroupPacker, mean_reward
from gyre.batching.work_queue import CORE, Lease, MicroStepQueue, QueuedClaim, ScoreLease
from gyre.cell.client import CellClient
from gyre.cell.protocol import ExposedWeights
from gyre.controller.cells.cell import Cell, RunCells
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.recovered_state import RecoveredState, RecoveredStep
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.update import MOST_FAILURES, Found, Queue, Updater, UpdateResult
from gyre.scheduler.messages import GroupAssigned, OfferGroup, StepTaken
from gyre.types.errors import CellError, CellGone, LogDamaged, NotFinite, TransferError
from gyre.types.ids import ExecutionId, GroupId
from gyre.types.run_events import (
    CallsDamaged,
    ClaimScored,
    ClaimTrained,
    GroupPacked,
    StepMade,
    StepReplayed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Batch size, lease and timeouts of a run's training."""

    groups_per_batch: int
    batch_executions: int
    """B*N of SPEC 8.2."""
    scored_first: bool
    """Every claim is scored by forward passes before it trains (SPEC 8.3)."""
    lease_s: float
    join_s: float
    group_s: float


class Batches:
    """Makes groups into claims, batch by batch, and keeps what a replay of past steps needs."""

    def __init__(
        self,
        loop: RunLoop,
        groups: GroupBuffer[ClosedExecution],
        queue: Queue,
        settings: TrainingSettings,
        packer: GroupPacker,
        changes: ChangeSignal,
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._queue = queue
        self._batch_executions = settings.batch_executions
        self._scored_first = settings.scored_first
        self._packer = packer
        self._changes = changes
        self._packing = BatchAssembler(groups, queue, groups_per_batch=settings.groups_per_batch)
        self._scores: dict[tuple[int, tuple[str, ...]], Found] = {}
        """Of claims that were scored before this process began, by step and executions."""
        self._norms: dict[int, float] = {}
        """Of the gradients of steps that may have to be replayed."""
        self._damaged: set[ExecutionId] = set()
        """Executions whose logs were when their groups were packed, and not trained."""

    def open(self, step: int) -> None:
        self._packing.open(step)
        self._changes.tell()

    @property
    def step(self) -> int:
        """The step whose batch is open."""
        step = self._packing.step
        assert step is not None
        return step

    @property
    def may_pull(self) -> bool:
        return self._packing.wants_group and self._groups.oldest() is not None

    @property
    def may_pack(self) -> bool:
        return self._packing.unpacked is not None

    @property
    def may_step(self) -> bool:
        """Every claim of the batch is in the sum of a cell, and the core is there to step."""
        is_done = self._packing.is_closed and self._queue.is_done
        return is_done and self._queue.trains(CORE)

    def pull(self) -> None:
        group = self._packing.pull()
        assert group is not None
        self._loop.record(GroupAssigned(group=GroupId(group.number), step=self.step))

    async def pack(self) -> None:
        """A group that was pulled becomes claims."""
        group, step = self._packing.unpacked, self.step
        assert group is not None
        made = await asyncio.to_thread(self._packer, group)
        self._loop.record(
            GroupPacked(
                group=group.number,
                step=step,
                num_claims=len(made.claims),
                num_trajectories=made.num_trajectories,
                num_tokens=made.num_tokens,
                num_targets=made.num_targets,
                row_tokens=made.row_tokens,
            )
        )
        for execution, reason in made.damaged.items():
            # A resumed controller packs a group again, and its damage is recorded once.
            if execution not in self._damaged:
                self._loop.record(
                    CallsDamaged(group=group.number, execution=execution, reason=reason)
                )
        self._damaged |= made.damaged.keys()
        self._packing.pack(group.number, [self._offer(claim) for claim in made.claims])
        self._changes.tell()

    def _offer(self, claim: EncodedClaim) -> QueuedClaim[EncodedClaim, Found]:
        is_scored = self._is_scored_first(claim)
        known = self._scores.get((self.step, claim.shares)) if is_scored else None
        return QueuedClaim(
            work=claim, num_scorings=int(is_scored), scores=() if known is None else (known,)
        )

    def stepped(self, step: int, *, gradient_norm: float) -> float | None:
        """The open batch is consumed; the mean of its rewards."""
        self._norms[step] = gradient_norm
        return mean_reward(self._packing.stepped())

    def forget(self, version: int) -> None:
        """This version is durable, with all that the next step needs."""
        self._groups.forget(version)
        self._norms = {step: norm for step, norm in self._norms.items() if step >= version}

    def restore(self, found: RecoveredState) -> None:
        """Steps that were taken before this process began, and the batch that was open."""
        self._damaged |= {ExecutionId(execution) for execution in found.damaged}
        for step, batch in sorted(found.steps.items()):
            self._reopen(step, batch)
            self._packing.recall_step()
            if batch.gradient_norm is not None:
                self._norms[step] = batch.gradient_norm
        if found.open is not None:
            step, batch = found.open
            self._reopen(step, batch)
            # Scores of claims are for good (SPEC 8.3).
            self._scores = {(step, shares): scores for shares, scores in batch.scores.items()}

    def _reopen(self, step: int, batch: RecoveredStep) -> None:
        self.open(step)
        for group in batch.groups:
            self._packing.recall(group, step)

    async def replay(self, core: CellClient, steps: Iterable[int]) -> bool:
        """The core takes these steps again; whether they are the same."""
        is_equal = True
        for step in steps:
            is_equal &= await self._replay_step(core, step)
        return is_equal

    async def _replay_step(self, core: CellClient, step: int) -> bool:
        """With the same groups in the same order, by the core alone (SPEC 3.6, 10).

        Sums of several cells that were added in another order differ in their last bits, unless
        the trainer is deterministic. LogDamaged where one has been since: without its execution
        other weights would come under a version that engines may serve.
        """
        lease = 0
        for group in self._groups.consumed_by(step):
            made = await asyncio.to_thread(self._packer, group)
            if since := made.damaged.keys() - self._damaged:
                named = "; ".join(
                    f"{execution}: {made.damaged[execution]}" for execution in sorted(since)
                )
                raise LogDamaged(f"step {step} cannot be made again as it was: {named}")
            for claim in made.claims:
                is_scored = self._is_scored_first(claim)
                await core.train(
                    claim.data,
                    lease=lease,
                    num_executions=self._batch_executions,
                    scores=await core.score(claim.data) if is_scored else None,
                )
                lease += 1
        norm = (await core.step(step)).gradient_norm
        is_equal = norm == self._norms.get(step, norm)
        self._loop.record(
            StepReplayed(step=step, num_claims=lease, gradient_norm=norm, is_equal=is_equal)
        )
        return is_equal

    def _is_scored_first(self, claim: EncodedClaim) -> bool:
        return self._scored_first or claim.oversize


GrantedLease = Lease[EncodedClaim, Found]


class ClaimRunner:
    """Has each claim scored and trained by a cell, and records what it came to."""

    def __init__(self, loop: RunLoop, queue: Queue, *, batch_executions: int) -> None:
        self._loop = loop
        self._queue = queue
        self._batch_executions = batch_executions
        self._failures: Counter[int] = Counter()
        self._losses: dict[int, float] = {}
        """One that is done twice counts once."""

    @property
    def loss(self) -> float:
        return sum(self._losses.values())

    def clear(self) -> None:
        """Another batch opens."""
        self._failures.clear()
        self._losses.clear()

    async def do(self, client: CellClient, granted: GrantedLease, *, step: int) -> None:
        claim = granted.work
        if isinstance(granted, ScoreLease):
            found = await client.score(claim.data)
            if self._queue.scored(granted.lease, found):
                self._loop.record(
                    ClaimScored(
                        step=step,
                        claim=granted.claim,
                        cell=client.number,
                        executions=claim.shares,
                        scores=found,
                    )
                )
            return
        began = perf_counter()
        report = await client.train(
            claim.data,
            lease=granted.lease,
            num_executions=self._batch_executions,
            scores=granted.scores[0] if granted.scores else None,
        )
        if not self._queue.done(granted.lease):
            return
        self._losses[granted.claim] = report.loss
        self._loop.record(
            ClaimTrained(
                step=step,
                claim=granted.claim,
                cell=client.number,
                num_executions=claim.num_executions,
                num_tokens=claim.num_tokens,
                loss=report.loss,
                seconds=perf_counter() - began,
                measures=report.measures,
            )
        )

    def refused(self, granted: GrantedLease, error: CellError) -> None:
        """It waits again, unless it was refused too often or can never be done: then raises."""
        if isinstance(error, NotFinite) or not error.retryable:
            raise error
        self._failures[granted.claim] += 1
        if self._failures[granted.claim] >= MOST_FAILURES:
            raise error
        self._queue.hand_back(granted.lease)


MOST_READS = 5
"""Times that a satellite tries to read what the core exposes, before a pull has failed."""


class TrainingCoordinator:
    """Pulls groups into batches, has cells train their claims, and orders the updates."""

    def __init__(
        self,
        loop: RunLoop,
        cells: RunCells,
        checkpointer: Checkpointer,
        settings: TrainingSettings,
        packer: GroupPacker,
    ) -> None:
        self._loop = loop
        self._cells = cells
        self._checkpointer = checkpointer
        self._join_s = settings.join_s
        self._changes = ChangeSignal()
        self._queue: Queue = MicroStepQueue(lease_s=settings.lease_s)
        self._groups: GroupBuffer[ClosedExecution] = GroupBuffer()
        self._batches = Batches(loop, self._groups, self._queue, settings, packer, self._changes)
        self._claims = ClaimRunner(loop, self._queue, batch_executions=settings.batch_executions)
        self._updates = Updater(loop, cells, self._queue, self._changes, group_s=settings.group_s)
        self._updating = False
        self.version = 0
        """v_t: steps that are taken."""

    # Groups

    def admit(self, group: GroupId, *, version: int, size: int) -> None:
        self._groups.admit(group, version=version, size=size)

    def offer(self, command: OfferGroup, kept: Mapping[int, ClosedExecution | None]) -> None:
        """All executions of the group have closed and left this, by member."""
        for member, one in kept.items():
            counts = member in command.members
            self._groups.close(command.group, member, one if counts else None)
        self._groups.offer(command.group, is_void=command.is_void)
        self._changes.tell()

    def open(self, step: int) -> None:
        self._claims.clear()
        self._batches.open(step)

    def restore(
        self,
        found: RecoveredState,
        left: Mapping[GroupId, Mapping[int, ClosedExecution | None]],
    ) -> None:
        """Groups and steps of an earlier controller, where executions of groups left this."""
        for number, group in found.groups.items():
            self.admit(number, version=group.admitted.version, size=len(group.members))
            if group.offered is not None:
                self.offer(group.offered, left[number])
        self._batches.restore(found)
        self.version = max((step + 1 for step in found.steps), default=found.since)

    async def replay(self, core: CellClient, version: int) -> None:
        """A core of this version takes the steps since then again (SPEC 10).

        If they came out otherwise, what satellites made with the weights before is worth nothing.
        """
        if not await self._batches.replay(core, range(version, self.version)):
            self._updates.outdated(self._queue.cells)

    # Cells

    async def pull(self, cell: Cell, *, wanted: Callable[[], bool]) -> bool:
        """A satellite has the core's weights; False if it is wanted elsewhere meanwhile.

        What is taken while the core makes others of them is taken again (SPEC 3.1). CellError when
        the core is gone.
        """
        num_reads = 0
        while wanted():
            await self.between_updates()
            cell.is_pulling = True
            try:
                exposed = await self._exposed()
                await cell.client.pull(exposed)
            except TransferError as error:
                # The core may hold others by now, and exposes those when it is asked again.
                num_reads += 1
                if num_reads == MOST_READS or not error.retryable:
                    raise
                continue
            finally:
                cell.is_pulling = False
                self._changes.tell()
            if not self._updating and exposed.version == self.version:
                return wanted()
        return False

    async def _exposed(self) -> ExposedWeights:
        core = self._cells[CORE]
        generation = core.generation
        try:
            return await core.client.expose()
        except CellGone as error:
            core.report_death(generation, self._loop)
            message = f"the core has no weights to give: {error}"
            raise CellError(message) from error

    async def between_updates(self) -> None:
        """Returns when no update is under way: a cell joins only then."""
        await self._changes.until(lambda: not self._updating)

    def join(self, cell: Cell) -> None:
        """The cell may claim; a core that was parked goes on with the sum it kept."""
        cell.is_leaving = False
        if cell.is_parked:
            cell.is_parked = False
            self._queue.resume(cell.number)
        else:
            self._queue.join(cell.number, self._loop.now)
        if cell.worker is None or cell.worker.done():
            cell.worker = self._loop.spawn(self._work(cell))
        self._changes.tell()

    async def leave(self, cell: Cell, *, parks: bool = False) -> None:
        """The cell claims no more and has nothing in hand; what it held returns, or is parked."""
        await self.between_updates()
        if parks:
            # What it has in hand may complete the batch, and then its sum is stepped first.
            await self._changes.until(lambda: not cell.num_busy and not self._updating)
            if self._queue.trains(cell.number):
                self._queue.park(cell.number)
                cell.is_parked = True
        else:
            cell.is_parked = False
            self._queue.leave(cell.number)
            self._changes.tell()
            await self._changes.until(lambda: not cell.num_busy)
            cell.is_behind = False
        self._changes.tell()

    def lost(self, cell: Cell) -> None:
        """The cell died: what it held returns."""
        cell.is_parked = cell.is_behind = False
        self._updates.lost(cell.number)
        self._changes.tell()

    def trains(self, cell: int) -> bool:
        return self._queue.trains(cell)

    def beat(self, cell: int) -> None:
        self._queue.beat(cell, self._loop.now)

    def silent(self) -> tuple[int, ...]:
        """Cells whose leases ran out; they have left."""
        return () if self._updates.is_summing else self._queue.fence(self._loop.now)

    @property
    def _has_core(self) -> bool:
        core = self._cells[CORE]
        return self._queue.trains(CORE) and core.is_alive(core.generation)

    # Work

    async def work(self) -> None:
        """Pulls groups and takes steps for as long as the run lasts."""
        batches = self._batches
        while True:
            await self._changes.until(
                lambda: batches.may_pack or batches.may_pull or batches.may_step
            )
            if batches.may_pull:
                batches.pull()
            if batches.may_pack:
                await batches.pack()
            elif batches.may_step:
                await self._update()

    async def _work(self, cell: Cell) -> None:
        """One process's claims, as many together as it takes, until its cell leaves."""
        generation, client = cell.generation, cell.client
        most = await client.claims_at_once()
        while cell.is_alive(generation) and (self._queue.trains(cell.number) or cell.is_parked):
            lease = None
            if self._may_catch_up(cell):
                await self._catch_up(cell)
            if self._may_claim(cell) and cell.num_busy < most:
                lease = self._queue.claim(cell.number, self._loop.now)
            if lease is None:
                await self._changes.next()
                continue
            cell.num_busy += 1
            self._loop.spawn(self._carry_out(cell, client, lease))
            # Another cell's turn, so that the first does not fill its pipeline with all there is.
            await asyncio.sleep(0)

    def _may_claim(self, cell: Cell) -> bool:
        is_free = not self._updating and not cell.is_leaving and not cell.is_behind
        return is_free and self._queue.trains(cell.number)

    def _may_catch_up(self, cell: Cell) -> bool:
        is_free = not self._updating and not cell.num_busy and not cell.is_leaving
        return cell.is_behind and is_free and self._has_core

    async def _catch_up(self, cell: Cell) -> None:
        """Its sum is empty and its weights are the core's, or it is still behind."""
        generation = cell.generation
        cell.num_busy += 1
        try:
            if await self.pull(cell, wanted=lambda: self._queue.trains(cell.number)):
                cell.is_behind = False
            cell.num_refusals = 0
        except CellGone:
            cell.report_death(generation, self._loop)
        except CellError:
            # A core that is gone is not the satellite's fault.
            cell.num_refusals += self._has_core
            if cell.num_refusals >= MOST_FAILURES:
                cell.report_death(generation, self._loop)
        finally:
            cell.num_busy -= 1
            self._changes.tell()

    async def _carry_out(self, cell: Cell, client: CellClient, granted: GrantedLease) -> None:
        try:
            await self._claims.do(client, granted, step=self._batches.step)
        except CellGone:
            if client is cell.client:
                cell.report_death(cell.generation, self._loop)
        except CellError as error:
            self._claims.refused(granted, error)
        finally:
            cell.num_busy -= 1
            self._changes.tell()

    # The update

    async def _update(self) -> None:
        """One version further; satellites that stay take the new weights."""
        self._updating = True
        try:
            await self._wait_for_pulls()
            if not self._batches.may_step:
                return  # The core, or what a satellite held, was lost meanwhile.
            step = self._batches.step
            members = [cell for cell in self._queue.cells if not self._cells[cell].is_behind]
            core = self._cells[CORE]
            generation = core.generation
            made = await self._updates.update(members, step)
            if made is None:
                return
            self._note(step, made)
            # Those that are sent home now take no weights from here (SPEC 3.3).
            await self._loop.settled()
            self._checkpointer.begin(self.version)
            self._batches.forget(self._checkpointer.covered)
            stay = [
                member
                for member in members
                if self._queue.trains(member) and not self._cells[member].is_leaving
            ]
            if core.generation == generation and CORE in stay:
                await self._updates.broadcast_weights(stay, self.version)
            else:
                # The core that stepped is gone and sends no weights; theirs are of before the step.
                self._updates.outdated(stay)
        finally:
            self._updating = False
            self._changes.tell()

    def _note(self, step: int, made: UpdateResult) -> None:
        report = made.report
        reward = self._batches.stepped(step, gradient_norm=report.gradient_norm)
        self.version = step + 1
        self._loop.record(
            StepMade(
                step=step,
                loss=self._claims.loss,
                reward=reward,
                gradient_norm=report.gradient_norm,
                is_clipped=report.is_clipped,
                claims=made.claims,
                reduce_s=made.reduce_s,
                step_s=report.step_s,
                reduced_bytes=made.reduced_bytes,
            )
        )
        self._loop.record(StepTaken(step=step))

    async def _wait_for_pulls(self) -> None:
        """Up to join_s; a cell that is later takes the weights after the update (SPEC 3.1)."""
        try:
            async with asyncio.timeout(self._join_s):
                await self._changes.until(
                    lambda: not any(cell.is_pulling for cell in self._cells.values())
                )
        except TimeoutError:
            pass
