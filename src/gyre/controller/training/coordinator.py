"""Groups to claims to steps: the streaming training loop.

Where cells train: groups become claims, cells do them, and every full batch becomes a step.

Rule 1: groups, leases and sums go through the buffers of batching/, which the simulator uses too.
Rule 2: while an update is under way no cell claims, joins, pulls or leaves (SPEC 3.1, 3.3).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter

from gyre.aio import ChangeSignal
from gyre.batching.group_buffer import GroupBuffer
from gyre.batching.group_packer import ClosedExecution, EncodedClaim, GroupPacker
from gyre.batching.work_queue import CORE, Lease, MicroStepQueue, ScoreLease
from gyre.cell.client import CellClient
from gyre.cell.protocol import ExposedWeights
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.clients import CellClients
from gyre.controller.recovered_state import RecoveredState
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.batches import Batches, TrainingSettings
from gyre.controller.training.update import MOST_FAILURES, Found, Queue, Updater, UpdateResult
from gyre.scheduler.messages import OfferGroup, StepTaken
from gyre.types.errors import CellError, CellGone, NotFinite, TransferError
from gyre.types.ids import GroupId
from gyre.types.run_events import ClaimScored, ClaimTrained, StepMade

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
        cells: CellClients,
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
        self._pulling: set[int] = set()
        self._refusals: Counter[int] = Counter()
        """By satellite: how often in a row it could not take them."""
        self._busy: Counter[int] = Counter()
        """What each cell has in hand: claims, or weights that it takes."""
        self._gone: set[CellClient] = set()
        self._parked: set[int] = set()
        self._going: set[int] = set()
        self._workers: dict[int, tuple[CellClient, asyncio.Task[None]]] = {}
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

    async def pull(self, cell: int, *, wanted: Callable[[], bool]) -> bool:
        """A satellite has the core's weights; False if it is wanted elsewhere meanwhile.

        What is taken while the core makes others of them is taken again (SPEC 3.1). CellError when
        the core is gone.
        """
        num_reads = 0
        while wanted():
            await self.between_updates()
            self._pulling.add(cell)
            try:
                exposed = await self._exposed()
                await self._cells[cell].pull(exposed)
            except TransferError as error:
                # The core may hold others by now, and exposes those when it is asked again.
                num_reads += 1
                if num_reads == MOST_READS or not error.retryable:
                    raise
                continue
            finally:
                self._pulling.discard(cell)
                self._changes.tell()
            if not self._updating and exposed.version == self.version:
                return wanted()
        return False

    async def _exposed(self) -> ExposedWeights:
        core = self._cells[CORE]
        try:
            return await core.expose()
        except CellGone as error:
            self._died(CORE, core)
            message = f"the core has no weights to give: {error}"
            raise CellError(message) from error

    async def between_updates(self) -> None:
        """Returns when no update is under way: a cell joins only then."""
        await self._changes.until(lambda: not self._updating)

    def join(self, cell: int) -> None:
        """The cell may claim; a core that was parked goes on with the sum it kept."""
        self._going.discard(cell)
        if cell in self._parked:
            self._parked.remove(cell)
            self._queue.resume(cell)
        else:
            self._queue.join(cell, self._loop.now)
        client, worker = self._workers.get(cell, (None, None))
        # It may have been given up while it was restarted, when its cell was dead already.
        self._gone.discard(self._cells[cell])
        if worker is None or worker.done() or client is not self._cells[cell]:
            client = self._cells[cell]
            self._workers[cell] = client, self._loop.spawn(self._work(cell, client))
        self._changes.tell()

    def going(self, cell: int) -> None:
        """The cell is ordered home; `leave` follows."""
        self._going.add(cell)

    async def leave(self, cell: int, *, parks: bool = False) -> None:
        """The cell claims no more and has nothing in hand; what it held returns, or is parked."""
        await self.between_updates()
        if parks:
            # What it has in hand may complete the batch, and then its sum is stepped first.
            await self._changes.until(lambda: not self._busy[cell] and not self._updating)
            if self._queue.trains(cell):
                self._queue.park(cell)
                self._parked.add(cell)
        else:
            self._parked.discard(cell)
            self._queue.leave(cell)
            self._changes.tell()
            await self._changes.until(lambda: not self._busy[cell])
            self._updates.behind.discard(cell)
        self._changes.tell()

    def lost(self, cell: int) -> None:
        """The cell died: what it held returns."""
        self._parked.discard(cell)
        self._updates.behind.discard(cell)
        self._gone.intersection_update(self._cells.values())
        self._updates.lost(cell)
        self._changes.tell()

    def trains(self, cell: int) -> bool:
        return self._queue.trains(cell)

    def beat(self, cell: int) -> None:
        self._queue.beat(cell, self._loop.now)

    def silent(self) -> tuple[int, ...]:
        """Cells whose leases ran out; they have left."""
        return () if self._updates.is_summing else self._queue.fence(self._loop.now)

    def _died(self, cell: int, client: CellClient) -> None:
        if self._is_here(cell, client):
            self._gone.add(client)
            self._cells.report_death(client, self._loop)

    @property
    def _has_core(self) -> bool:
        return self._queue.trains(CORE) and self._cells[CORE] not in self._gone

    def _is_here(self, cell: int, client: CellClient) -> bool:
        return self._cells[cell] is client and client not in self._gone

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

    async def _work(self, cell: int, client: CellClient) -> None:
        """One cell's claims, as many together as it takes, until it leaves."""
        most = await client.claims_at_once()
        while self._is_here(cell, client) and (self._queue.trains(cell) or cell in self._parked):
            lease = None
            if self._may_catch_up(cell):
                await self._catch_up(cell, client)
            if self._may_claim(cell) and self._busy[cell] < most:
                lease = self._queue.claim(cell, self._loop.now)
            if lease is None:
                await self._changes.next()
                continue
            self._busy[cell] += 1
            self._loop.spawn(self._carry_out(cell, client, lease))
            # Another cell's turn, so that the first does not fill its pipeline with all there is.
            await asyncio.sleep(0)

    def _may_claim(self, cell: int) -> bool:
        is_free = (
            not self._updating and cell not in self._going and cell not in self._updates.behind
        )
        return is_free and self._queue.trains(cell)

    def _may_catch_up(self, cell: int) -> bool:
        is_free = not self._updating and not self._busy[cell] and cell not in self._going
        return cell in self._updates.behind and is_free and self._has_core

    async def _catch_up(self, cell: int, client: CellClient) -> None:
        """Its sum is empty and its weights are the core's, or it is still behind."""
        self._busy[cell] += 1
        try:
            if await self.pull(cell, wanted=lambda: self._queue.trains(cell)):
                self._updates.behind.discard(cell)
        except CellGone:
            self._died(cell, client)
        except CellError:
            # A core that is gone is not the satellite's fault.
            self._refusals[cell] += self._has_core
            if self._refusals[cell] >= MOST_FAILURES:
                self._died(cell, client)
        else:
            self._refusals.pop(cell, None)
        finally:
            self._busy[cell] -= 1
            self._changes.tell()

    async def _carry_out(self, cell: int, client: CellClient, granted: GrantedLease) -> None:
        try:
            await self._claims.do(client, granted, step=self._batches.step)
        except CellGone:
            self._died(cell, client)
        except CellError as error:
            self._claims.refused(granted, error)
        finally:
            self._busy[cell] -= 1
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
            members = [cell for cell in self._queue.cells if cell not in self._updates.behind]
            core = self._cells[CORE]
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
                if self._queue.trains(member) and member not in self._going
            ]
            if core is self._cells[CORE] and CORE in stay:
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
                await self._changes.until(lambda: not self._pulling)
        except TimeoutError:
            pass
