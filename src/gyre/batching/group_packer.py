"""Turns a pulled group into claims: logs to trees, trees to rows, rows to packs, packs to bytes.

Claims travel from the controller to a cell as safetensors, and are checked on arrival.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gyre.batching.advantages import advantages
from gyre.batching.group_buffer import ReadyGroup
from gyre.batching.packing import AdmittedExecution, pack
from gyre.storage import call_log
from gyre.trajectory.selection import Row, generator, row, select_trajectories
from gyre.trajectory.tree import grow
from gyre.types.errors import LogDamaged, RequestError
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Share

FORMAT = 1
_FIELDS = {
    "ids": np.int32,
    "positions": np.int32,
    "tout": np.int32,
    "predictors": np.int32,
    "labels": np.int32,
    "behaviour": np.float32,
    "shares": np.int32,
}
_LENGTH = struct.Struct("<Q")
_NOT_A_HEADER = (LookupError, TypeError, ValueError, RecursionError)


class _About(msgspec.Struct, forbid_unknown_fields=True):
    """What a claim says beside its arrays."""

    format: int
    num_packs: int
    oversize: bool
    shares: list[Share]


def packed(claim: Claim) -> bytes:
    """All packs of a claim, and its shares in the metadata."""
    about = _About(
        format=FORMAT,
        num_packs=len(claim.packs),
        oversize=claim.oversize,
        shares=list(claim.shares),
    )
    arrays = {
        f"{number}.{name}": np.ascontiguousarray(getattr(pack, name))
        for number, pack in enumerate(claim.packs)
        for name in _FIELDS
    }
    return save(arrays, metadata={"claim": msgspec.json.encode(about).decode()})


def unpacked(data: bytes) -> Claim:
    """What `packed` made; raises RequestError for anything else."""
    try:
        about = msgspec.json.decode(_metadata(data)["claim"], type=_About)
        found = load(data)
    except (SafetensorError, msgspec.MsgspecError, *_NOT_A_HEADER) as error:
        raise RequestError(f"expected the bytes of a claim: {error}") from error
    if about.format != FORMAT:
        raise RequestError(f"a claim of format {about.format}: this is format {FORMAT}")
    if not 0 <= about.num_packs <= len(found):
        raise RequestError(f"a claim of {about.num_packs} packs in {len(found)} arrays")
    wanted = {f"{number}.{name}" for number in range(about.num_packs) for name in _FIELDS}
    if wanted != set(found):
        other = sorted(wanted ^ set(found))[0]
        raise RequestError(f"a claim of {about.num_packs} packs: array {other!r} lacks or is spare")
    packs = tuple(_pack(number, found) for number in range(about.num_packs))
    return Claim(shares=tuple(about.shares), packs=packs, oversize=about.oversize)


def _pack(number: int, found: Mapping[str, NDArray[Any]]) -> Pack:
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype in _FIELDS.items():
        array = found[f"{number}.{name}"]
        if array.dtype != dtype or array.ndim != 1:
            said = f"{array.dtype} of {array.ndim} dimensions"
            raise RequestError(f"expected {np.dtype(dtype)} of one, found {said}", where=name)
        arrays[name] = array
    for first, *others in (("ids", "positions", "tout"), ("labels", "predictors", "behaviour")):
        for other in others:
            if len(arrays[first]) != len(arrays[other]):
                lengths = f"{len(arrays[other])} beside {len(arrays[first])} {first}"
                raise RequestError(f"expected as many, found {lengths}", where=other)
    return Pack(**arrays)


def _metadata(data: bytes) -> dict[str, str]:
    (length,) = _LENGTH.unpack_from(data) if len(data) >= _LENGTH.size else (0,)
    header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    return header["__metadata__"]  # type: ignore[no-any-return]


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
