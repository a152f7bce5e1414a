"""The update: sums meet at the core, it steps, and satellites that stay take the new weights.

Rule 1: the core's report decides: what it has summed is in its sum, even if a sender has died.
Rule 2: a member that does not answer in time is given up, and the others meet in another epoch.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from gyre.aio import ChangeSignal
from gyre.batching.group_packer import EncodedClaim
from gyre.batching.work_queue import CORE, MicroStepQueue
from gyre.cell.client import CellClient
from gyre.controller.cells.cell import RunCells
from gyre.controller.run_loop import RunLoop
from gyre.types.errors import CellError, CellGone, InternalError
from gyre.types.training import Score, StepReport

Found = tuple[Score, ...]
Queue = MicroStepQueue[EncodedClaim, Found]
MOST_FAILURES = 3
"""Times that a thing may fail with every cell alive; then the run stops with its name."""
PATIENCE = 10
"""Times that `group_s` may pass before a cell answers; a core that steps alone may take long."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """An update that the core has taken."""

    report: StepReport
    claims: Mapping[int, int]
    """By cell: how many of the claims it did."""
    reduce_s: float
    reduced_bytes: int


class Updater:
    """Has the training cells reduce, step and broadcast, and forms their process groups."""

    def __init__(
        self,
        loop: RunLoop,
        cells: RunCells,
        queue: Queue,
        changes: ChangeSignal,
        *,
        group_s: float,
    ) -> None:
        """`group_s`: how long the others are waited for once one member has answered."""
        self._loop = loop
        self._cells = cells
        self._queue = queue
        self._changes = changes
        self._group_s = group_s
        self._num_failures = 0
        """In a row, with every cell alive."""
        self._lost: set[int] | None = None
        """While sums are under way: cells that were lost meanwhile."""
        self.epoch = 0
        """Of groups of cells; a failure begins another."""

    def lost(self, cell: int) -> None:
        """The cell died: what it held returns, and groups that it was in are of an old epoch."""
        self.epoch += 1
        if self._lost is None:
            self._queue.leave(cell)
        else:
            self._lost.add(cell)

    def outdated(self, cells: Iterable[int]) -> None:
        """These take weights before they claim again, and what they held returns."""
        for cell in cells:
            if cell != CORE and self._queue.trains(cell):
                self._queue.join(cell, self._loop.now)
                self._cells[cell].is_behind = True
        self._changes.tell()

    @property
    def is_summing(self) -> bool:
        """It is unknown whether the core has the sum of each satellite."""
        return self._lost is not None

    async def update(self, members: Sequence[int], step: int) -> UpdateResult | None:
        """One step with the sums of all members; None if it did not come about."""
        began = perf_counter()
        claims = {cell: len(self._queue.holds(cell)) for cell in members}
        sent = await self._reduced(members)
        if sent is None:
            return None
        reduce_s = perf_counter() - began
        report = await self._stepped(step) if self._is_summed else None
        if report is None:
            # What they sent went with the core, and their own sums still hold it.
            self.outdated(members)
            return None
        self._num_failures = 0
        return UpdateResult(report=report, claims=claims, reduce_s=reduce_s, reduced_bytes=sent)

    async def broadcast_weights(self, members: Sequence[int], version: int) -> None:
        """Satellites have the core's weights; those that have not are outdated."""
        if len(members) < 2:
            return
        answers = await self._together(
            members, lambda client: client.broadcast_weights(self.epoch, members, version)
        )
        failed = [cell for cell, one in answers.items() if isinstance(one, BaseException)]
        if failed:
            self.outdated(failed)
            await self._after_failure(answers)

    @property
    def _is_summed(self) -> bool:
        return self._queue.trains(CORE) and self._queue.is_reduced

    async def _reduced(self, members: Sequence[int]) -> int | None:
        """Bytes that were sent; None if the sum did not come about, and must be tried again."""
        leases = {cell: sorted(self._queue.holds(cell)) for cell in members}
        self._lost = set()
        try:
            answers = await self._together(
                members, lambda client: client.reduce(self.epoch, members, leases)
            )
            has_sum = not isinstance(answers[CORE], BaseException)
            for cell in members if has_sum else ():
                if cell != CORE and not self._queue.reduce(cell, leases[cell]):
                    raise InternalError(f"cell {cell}: summed, and not what it held")
        finally:
            lost, self._lost = self._lost, None
            for cell in lost:
                self._queue.leave(cell)
        if any(isinstance(answer, BaseException) for answer in answers.values()):
            await self._after_failure(answers)
        if not has_sum:
            return None
        return sum(answer for answer in answers.values() if isinstance(answer, int))

    async def _stepped(self, step: int) -> StepReport | None:
        """None if the core died, and with it all that was summed."""
        answers = await self._together((CORE,), lambda core: core.step(step))
        report = answers[CORE]
        if isinstance(report, CellGone):
            await self._after_failure(answers)
            return None
        if isinstance(report, BaseException):
            raise report
        # The step of a core that was given up meanwhile does not count.
        return report if self._is_summed else None

    async def _together(
        self, members: Sequence[int], order: Callable[[CellClient], Coroutine[Any, Any, T]]
    ) -> dict[int, T | BaseException]:
        """Each member's answer or error; one that is late by far counts as gone, and has died."""
        asked = [(cell, cell.generation) for cell in map(self._cells.__getitem__, members)]
        doing = [asyncio.create_task(order(cell.client)) for cell, _ in asked]
        most_s, first = PATIENCE * self._group_s, asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait(doing, timeout=most_s, return_when=first)
            await asyncio.wait(doing, timeout=self._group_s)
        finally:
            for one in doing:
                one.cancel()
        found = await asyncio.gather(*doing, return_exceptions=True)
        answers = {
            cell: _late(cell, self._group_s) if isinstance(one, asyncio.CancelledError) else one
            for cell, one in zip(members, found, strict=True)
        }
        for cell, generation in asked:
            if isinstance(answers[cell.number], CellGone):
                cell.report_death(generation, self._loop)
        return answers

    async def _after_failure(self, answers: Mapping[int, object]) -> None:
        """Those that live meet in another epoch, or their error ends it."""
        self.epoch += 1
        errors = [answer for answer in answers.values() if isinstance(answer, BaseException)]
        has_lost = any(isinstance(error, CellGone) for error in errors)
        self._num_failures = 0 if has_lost else self._num_failures + 1
        await self._loop.settled()
        for error in errors:
            if not isinstance(error, CellError) or self._num_failures >= MOST_FAILURES:
                raise error


def _late(cell: int, group_s: float) -> CellGone:
    return CellGone(f"cell {cell}: no answer within {group_s:g} s of the others")
