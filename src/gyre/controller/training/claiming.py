"""Claims of the open batch as cells do them: scored, trained, refused, each counted once."""

from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gyre.batching.group_packer import EncodedClaim
from gyre.batching.work_queue import Lease, ScoreLease
from gyre.cell.client import CellClient
from gyre.controller.training.update import MOST_FAILURES, Found, Queue
from gyre.types.errors import CellError, NotFinite
from gyre.types.run_events import ClaimScored, ClaimTrained

GrantedLease = Lease[EncodedClaim, Found]


class ClaimRunner:
    """What became of each claim so far."""

    def __init__(self, queue: Queue, *, batch_executions: int, hear: Callable[[Any], None]) -> None:
        self._queue = queue
        self._batch_executions = batch_executions
        self._hear = hear
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
                self._hear(
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
        self._hear(
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
