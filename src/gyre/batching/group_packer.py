"""Turns a pulled group into claims: logs to trees, trees to selected rows, rows to packs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gyre.batching.advantages import advantages
from gyre.batching.claim_codec import packed
from gyre.batching.group_buffer import ReadyGroup
from gyre.batching.packing import AdmittedExecution, pack
from gyre.storage import call_log
from gyre.trajectory.selection import Row, generator, row, select_trajectories
from gyre.trajectory.tree import grow
from gyre.types.errors import LogDamaged
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedExecution:
    """The name and reward of a closed execution, whose rows come from its call log."""

    execution: ExecutionId
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClaim:
    """A claim as bytes for a cell, with the counts that the controller reports."""

    data: bytes
    num_executions: int
    num_tokens: int
    oversize: bool
    shares: tuple[ExecutionId, ...] = ()
    """Whose they are: what its scores are of, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGroup:
    """The claims of one group, and the counts that the controller reports."""

    claims: tuple[EncodedClaim, ...]
    num_trajectories: int
    num_tokens: int
    num_targets: int
    row_tokens: int
    damaged: Mapping[ExecutionId, str] = field(default_factory=dict)
    """Why nothing of an execution could be read; it counts, and has no targets (SPEC 7.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPacker:
    """Reads a group's call logs, selects trajectories, and packs them into claims."""

    folder: Path
    """The run's, where call logs are."""
    seed: int
    max_trajectories: int | None
    pack_tokens: int
    claim_packs: int
    divide_by_std: bool
    by_trajectory: bool
    shuffle_rewards: bool

    def __call__(self, group: ReadyGroup[ClosedExecution]) -> PackedGroup:
        """A function of the group and the run alone (SPEC 3.6)."""
        kept = (
            []
            if group.is_void
            else [execution for execution in group.kept if execution is not None]
        )
        rewards = [execution.reward for execution in kept]
        if self.shuffle_rewards:
            Random(f"{self.seed}/rewards/{group.number}").shuffle(rewards)
        found = advantages(rewards, divide_by_std=self.divide_by_std)
        admitted = []
        damaged: dict[ExecutionId, str] = {}
        for one, advantage in zip(kept, found, strict=True):
            assert advantage is not None
            # An advantage of zero costs nothing, not even the reading of a log (SPEC 7.3).
            rows: tuple[Row, ...] = ()
            if advantage:
                try:
                    rows = self._rows(one.execution)
                except LogDamaged as error:
                    damaged[one.execution] = str(error)
            admitted.append(
                AdmittedExecution(execution=one.execution, advantage=advantage, rows=rows)
            )
        packing = pack(
            admitted,
            pack_tokens=self.pack_tokens,
            claim_tokens=self.pack_tokens * self.claim_packs,
            sharing=True,
            by_trajectory=self.by_trajectory,
        )
        return PackedGroup(
            claims=tuple(map(_on_the_wire, packing.claims)),
            num_trajectories=sum(len(execution.rows) for execution in admitted),
            num_tokens=packing.num_tokens,
            num_targets=packing.num_targets,
            row_tokens=packing.row_tokens,
            damaged=damaged,
        )

    def _rows(self, execution: ExecutionId) -> tuple[Row, ...]:
        path = call_log.path_of(self.folder, execution)
        if not path.exists():
            return ()
        tree = grow(call_log.read(path).records)
        drawn = select_trajectories(
            tree, generator(self.seed, execution), max_trajectories=self.max_trajectories
        )
        return tuple(row(tree, trajectory) for trajectory in drawn)


def _on_the_wire(claim: Claim) -> EncodedClaim:
    return EncodedClaim(
        data=packed(claim),
        num_executions=len({share.execution for share in claim.shares}),
        num_tokens=sum(pack.num_tokens for pack in claim.packs),
        oversize=claim.oversize,
        shares=tuple(share.execution for share in claim.shares),
    )


def mean_reward(groups: Sequence[ReadyGroup[ClosedExecution]]) -> float | None:
    """Over all rewards of the groups; None without any."""
    rewards = [
        execution.reward for group in groups for execution in group.kept if execution is not None
    ]
    return sum(rewards) / len(rewards) if rewards else None
