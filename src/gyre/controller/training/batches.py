"""Groups of a run on their way through training: waiting, in the open batch, or in a past step."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from gyre.aio import ChangeSignal
from gyre.batching.group_buffer import BatchAssembler, GroupBuffer
from gyre.batching.group_packer import ClosedExecution, EncodedClaim, GroupPacker, mean_reward
from gyre.batching.work_queue import CORE, QueuedClaim
from gyre.cell.client import CellClient
from gyre.controller.recovered_state import RecoveredState, RecoveredStep
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.update import Found, Queue
from gyre.scheduler.messages import GroupAssigned
from gyre.types.errors import LogDamaged
from gyre.types.ids import ExecutionId, GroupId
from gyre.types.run_events import CallsDamaged, GroupPacked, StepReplayed


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
