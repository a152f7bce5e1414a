"""Where cells train: groups become claims, cells do them, and every full batch becomes a step.

Rule 1: groups, leases and sums go through the buffers of stream/, which the simulator uses too.
Rule 2: while an update is under way nobody claims, joins, pulls or leaves (SPEC 3.1, 3.3).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from time import perf_counter
from typing import Any

from gyre.plan.messages import CellDied, CellId, GroupAssigned, GroupId, OfferGroup, StepTaken
from gyre.run.cells import CellClient
from gyre.run.materialise import Kept, Materialised, WireClaim, mean_reward
from gyre.stream.groups import Group, GroupBuffer
from gyre.stream.microsteps import CORE, Lease, MicroSteps, Offer, Scoring
from gyre.stream.pulling import PackingBuffer
from gyre.words.errors import BrokenPromise, CellError, CellGone, NotFinite
from gyre.words.events import ClaimTrained, GroupPacked, StepMade
from gyre.words.packs import Score

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
Found = tuple[Score, ...]
MOST_FAILURES = 3
"""Times a claim may come back because cells could not do it; then the run stops with its name."""


class Hall:
    """The trajectory buffer, the packing buffer, the queue, and the cells that claim from it."""

    def __init__(
        self,
        cells: Mapping[int, CellClient],
        *,
        groups_per_batch: int,
        batch_executions: int,
        lease_s: float,
        join_s: float,
        scored_first: bool,
        packer: Callable[[Group[Kept]], Materialised],
        hear: Callable[[Any], None],
        settled: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        spawn: Spawn,
        version: int = 0,
    ) -> None:
        """`scored_first`: every claim is scored by forward passes before it trains (SPEC 8.3)."""
        self._cells = cells
        self._batch_executions = batch_executions
        self._join_s = join_s
        self._scored_first = scored_first
        self._packer = packer
        self._hear = hear
        self._settled = settled
        self._clock = clock
        self._spawn = spawn
        self._version = version
        self._groups: GroupBuffer[Kept] = GroupBuffer()
        self._queue: MicroSteps[WireClaim, Found] = MicroSteps(lease_s=lease_s)
        self._packing = PackingBuffer(self._groups, self._queue, groups_per_batch=groups_per_batch)
        self._news = asyncio.Event()
        self._updating = False
        self._pulling: set[int] = set()
        self._busy: Counter[int] = Counter()
        """Claims in hand by cell."""
        self._gone: set[CellClient] = set()
        self._parked: set[int] = set()
        self._going: set[int] = set()
        self._workers: dict[int, tuple[CellClient, asyncio.Task[None]]] = {}
        self._failures: dict[int, int] = {}
        self._losses: dict[int, float] = {}
        """By claim of the open batch; one that is done twice counts once."""
        self._num_failures = 0
        """Updates in a row that failed with every cell alive."""
        self.epoch = 0
        """Of groups of cells; a failure begins another."""

    # Groups

    def admit(self, group: GroupId, *, version: int, size: int) -> None:
        self._groups.admit(group, version=version, size=size)

    def offer(self, command: OfferGroup, kept: Mapping[int, Kept | None]) -> None:
        """All executions of the group have closed and left this, by member."""
        for member, one in kept.items():
            counts = member in command.members
            self._groups.close(command.group, member, one if counts else None)
        self._groups.offer(command.group, is_void=command.is_void)
        self._tell()

    def open(self, step: int) -> None:
        self._packing.open(step)
        self._losses.clear()
        self._tell()

    def forget(self, version: int) -> None:
        """This version is durable."""
        self._groups.forget(version)

    # Cells

    async def pull(self, cell: int, *, wanted: Callable[[], bool]) -> bool:
        """A satellite has the core's weights; False if it is wanted elsewhere meanwhile.

        What is taken while the core makes others of them is taken again (SPEC 3.1).
        """
        while wanted():
            await self._until(lambda: not self._updating)
            self._pulling.add(cell)
            try:
                exposed = await self._cells[CORE].expose()
                await self._cells[cell].pull(exposed)
            finally:
                self._pulling.discard(cell)
                self._tell()
            if not self._updating and exposed.version == self._version:
                return wanted()
        return False

    def join(self, cell: int) -> None:
        """The cell may claim; a core that was parked goes on with the sum it kept."""
        self._going.discard(cell)
        if cell in self._parked:
            self._parked.remove(cell)
            self._queue.resume(cell)
        else:
            self._queue.join(cell, self._clock())
        client, worker = self._workers.get(cell, (None, None))
        if worker is None or worker.done() or client is not self._cells[cell]:
            client = self._cells[cell]
            self._workers[cell] = client, self._spawn(self._work(cell, client))
        self._tell()

    def going(self, cell: int) -> None:
        """The cell is ordered home; `leave` follows."""
        self._going.add(cell)

    async def leave(self, cell: int, *, parks: bool = False) -> None:
        """The cell claims no more and has nothing in hand; what it held returns, or is parked."""
        await self._until(lambda: not self._updating)
        if parks:
            await self._until(lambda: not self._busy[cell])
            if self._queue.trains(cell):
                self._queue.park(cell)
                self._parked.add(cell)
        else:
            self._parked.discard(cell)
            self._queue.leave(cell)
            self._tell()
            await self._until(lambda: not self._busy[cell])
        self._tell()

    def lost(self, cell: int) -> None:
        """The cell died: what it held returns, and groups that it was in are of an old epoch."""
        self._parked.discard(cell)
        self._queue.leave(cell)
        self.epoch += 1
        self._tell()

    def beat(self, cell: int) -> None:
        self._queue.beat(cell, self._clock())

    def silent(self) -> tuple[int, ...]:
        """Cells that were not heard of for too long; they have left."""
        return self._queue.fence(self._clock())

    # Work

    async def work(self) -> None:
        """Pulls groups and takes steps for as long as the run lasts."""
        while True:
            await self._until(lambda: self._may_pull or self._may_step)
            if self._may_pull:
                await self._pull_group()
            else:
                await self._update()

    @property
    def _may_pull(self) -> bool:
        wanted = self._packing.wants_group and not self._updating
        return wanted and self._groups.oldest() is not None

    @property
    def _may_step(self) -> bool:
        is_done = self._packing.is_closed and self._queue.is_done
        return is_done and self._queue.trains(CORE)

    async def _pull_group(self) -> None:
        group = self._packing.pull()
        step = self._packing.step
        assert group is not None
        assert step is not None
        self._hear(GroupAssigned(group=GroupId(group.number), step=step))
        made = await asyncio.to_thread(self._packer, group)
        self._hear(
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
        offers = [
            Offer(work=one, num_scorings=int(self._scored_first or one.oversize))
            for one in made.claims
        ]
        self._packing.pack(group.number, offers)
        self._tell()

    async def _work(self, cell: int, client: CellClient) -> None:
        """One cell's claims, as many together as it takes, until it leaves."""
        most = await client.claims_at_once()
        while self._is_here(cell, client) and (self._queue.trains(cell) or cell in self._parked):
            lease = None
            may_claim = self._queue.trains(cell) and not self._updating and cell not in self._going
            if may_claim and self._busy[cell] < most:
                lease = self._queue.claim(cell, self._clock())
            if lease is None:
                await self._next_news()
                continue
            self._busy[cell] += 1
            self._spawn(self._carry_out(cell, client, lease))
            # Another cell's turn, so that the first does not fill its pipeline with all there is.
            await asyncio.sleep(0)

    async def _carry_out(
        self, cell: int, client: CellClient, lease: Lease[WireClaim, Found]
    ) -> None:
        try:
            await self._do(client, lease)
        except CellGone:
            if self._is_here(cell, client):
                self._gone.add(client)
                self._hear(CellDied(cell=CellId(cell)))
        except CellError as error:
            self._refused(lease, error)
        finally:
            self._busy[cell] -= 1
            self._tell()

    def _is_here(self, cell: int, client: CellClient) -> bool:
        return self._cells[cell] is client and client not in self._gone

    async def _do(self, client: CellClient, lease: Lease[WireClaim, Found]) -> None:
        claim = lease.work
        if isinstance(lease, Scoring):
            self._queue.scored(lease.lease, await client.score(claim.data))
            return
        began = perf_counter()
        cell = client.number
        report = await client.train(
            claim.data,
            lease=lease.lease,
            num_executions=self._batch_executions,
            scores=lease.scores[0] if lease.scores else None,
        )
        if not self._queue.done(lease.lease):
            return
        self._losses[lease.claim] = report.loss
        step = self._packing.step
        assert step is not None
        self._hear(
            ClaimTrained(
                step=step,
                claim=lease.claim,
                cell=cell,
                num_executions=claim.num_executions,
                num_tokens=claim.num_tokens,
                loss=report.loss,
                seconds=perf_counter() - began,
                measures=report.measures,
            )
        )

    def _refused(self, lease: Lease[WireClaim, Found], error: CellError) -> None:
        if isinstance(error, NotFinite) or not error.retryable:
            raise error
        self._failures[lease.claim] = self._failures.get(lease.claim, 0) + 1
        if self._failures[lease.claim] >= MOST_FAILURES:
            raise error
        self._queue.hand_back(lease.lease)

    # The update

    async def _update(self) -> None:
        """Sums meet at the core, which steps; satellites that stay take the new weights."""
        self._updating = True
        try:
            await self._wait_for_pulls()
            step = self._packing.step
            assert step is not None
            began = perf_counter()
            claims = {cell: len(self._queue.holds(cell)) for cell in self._queue.cells}
            sent = await self._reduce(self._queue.cells)
            if sent is None:
                return
            reduce_s = perf_counter() - began
            report = await self._cells[CORE].step(step)
            self._version = report.version
            self._failures.clear()
            groups = self._packing.stepped()
            self._hear(
                StepMade(
                    step=step,
                    loss=sum(self._losses.values()),
                    reward=mean_reward(groups),
                    gradient_norm=report.gradient_norm,
                    is_clipped=report.is_clipped,
                    claims=claims,
                    reduce_s=reduce_s,
                    step_s=report.step_s,
                    reduced_bytes=sent,
                )
            )
            self._hear(StepTaken(step=step))
            # Those that are sent home now take no weights from here (SPEC 3.3).
            await self._settled()
            await self._spread([one for one in self._queue.cells if one not in self._going])
        finally:
            self._updating = False
            self._tell()

    async def _wait_for_pulls(self) -> None:
        """Up to join_s; whoever is later takes the weights after the update (SPEC 3.1)."""
        try:
            async with asyncio.timeout(self._join_s):
                await self._until(lambda: not self._pulling)
        except TimeoutError:
            pass

    async def _reduce(self, members: Sequence[int]) -> int | None:
        """Bytes that were sent; None if the sum did not come about, and must be tried again.

        The core's word decides: what it has summed is in its sum, whatever became of the senders.
        """
        leases = {cell: sorted(self._queue.holds(cell)) for cell in members}
        orders = (self._cells[cell].reduce(self.epoch, members, leases) for cell in members)
        answers = dict(
            zip(members, await asyncio.gather(*orders, return_exceptions=True), strict=True)
        )
        core = answers[CORE]
        if isinstance(core, BaseException):
            await self._after_failure(answers)
            return None
        for cell in members:
            if cell != CORE and not self._queue.reduce(cell, leases[cell]):
                raise BrokenPromise(f"cell {cell}: summed, and not what it held")
        if any(isinstance(one, BaseException) for one in answers.values()):
            await self._after_failure(answers)
        return sum(one for one in answers.values() if isinstance(one, int))

    async def _spread(self, members: Sequence[int]) -> None:
        if len(members) < 2:
            return
        orders = (self._cells[one].spread(self.epoch, members, self._version) for one in members)
        answers = dict(
            zip(members, await asyncio.gather(*orders, return_exceptions=True), strict=True)
        )
        if all(not isinstance(one, BaseException) for one in answers.values()):
            return
        await self._after_failure(answers)
        exposed = await self._cells[CORE].expose()
        for cell in [one for one in self._queue.cells if one != CORE]:
            await self._cells[cell].pull(exposed)

    async def _after_failure(self, answers: Mapping[int, object]) -> None:
        """Cells that are gone have died; others meet in another epoch, or their error ends it."""
        self.epoch += 1
        gone = [cell for cell, one in answers.items() if isinstance(one, CellGone)]
        others = [one for one in answers.values() if isinstance(one, BaseException)]
        self._num_failures = 0 if gone else self._num_failures + 1
        for cell in gone:
            self._hear(CellDied(cell=CellId(cell)))
        await self._settled()
        for error in others:
            if not isinstance(error, CellError) or self._num_failures >= MOST_FAILURES:
                raise error

    # News

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _next_news(self) -> None:
        await self._news.wait()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._next_news()
