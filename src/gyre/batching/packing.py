"""Rows to packs with shared prefixes, packs to claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from gyre.trajectory.selection import Row
from gyre.trajectory.tree import Ids
from gyre.types.errors import ConfigError, InternalError
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Share

Counts = NDArray[np.int64]
Ranks = NDArray[np.intp]
"""Places in a forest's order, increasing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlattenedForest:
    """Some paths of a forest in depth-first order, T tokens in all."""

    ids: Ids
    positions: NDArray[np.int32]
    tout: NDArray[np.int32]
    """T: index just after the token's subtree."""
    asked: tuple[NDArray[np.int32], ...]
    """Per path: where the tokens at the depths asked for stand."""


class Forest:
    """Paths that share what is equal from their beginning, or with `sharing` off, nothing.

    Sorted by their tokens, a path shares with the one before it at least what it shares with any
    earlier one; of two paths the part in common is the least of the parts between neighbours.
    """

    def __init__(self, paths: Sequence[Ids], *, sharing: bool) -> None:
        numbers = list(range(len(paths)))
        if sharing:
            by_tokens = cmp_to_key(_compare)
            numbers.sort(key=lambda number: by_tokens(paths[number]))
        self.order = tuple(numbers)
        """Per rank: which of the given paths stands there."""
        self._paths = [paths[number] for number in numbers]
        self.lengths: Counts = np.array([len(path) for path in self._paths], dtype=np.int64)
        self._common: Counts = np.zeros(len(paths), dtype=np.int64)
        if sharing and len(paths) > 1:
            pairs = zip(self._paths, self._paths[1:], strict=False)
            self._common[1:] = [common_prefix(one, two) for one, two in pairs]

    def shared(self, ranks: Ranks) -> Counts:
        """Per path of a choice: how many tokens it has in common with the one before it."""
        found = np.zeros(len(ranks), dtype=np.int64)
        if len(ranks) > 1:
            between = self._common[: ranks[-1] + 1]
            found[1:] = np.minimum.reduceat(between, ranks[:-1] + 1)
        return found

    def num_tokens(self, ranks: Ranks) -> int:
        """How many tokens a choice of paths has once it is laid."""
        return int(self.lengths[ranks].sum() - self.shared(ranks).sum())

    def lay(self, ranks: Ranks, asked: Sequence[NDArray[np.int32]]) -> FlattenedForest:
        """A choice of paths as arrays of their own; `asked` holds some depths of each path."""
        shared = self.shared(ranks).tolist()
        lengths = self.lengths[ranks].tolist()
        bases = np.cumsum([0] + [end - first for first, end in zip(shared, lengths, strict=True)])
        total, longest = int(bases[-1]), max(lengths)
        ids, positions, tout = (np.empty(total, dtype=np.int32) for _ in range(3))
        path = np.empty(longest, dtype=np.int32)
        found = []
        for at, (rank, first, end) in enumerate(zip(ranks, shared, lengths, strict=True)):
            new = slice(bases[at], bases[at + 1])
            ids[new] = self._paths[rank][first:end]
            positions[new] = np.arange(first, end, dtype=np.int32)
            path[first:end] = np.arange(bases[at], bases[at + 1], dtype=np.int32)
            found.append(path[asked[at]])
        # From the last path to the first: at each depth, where the next path that differs begins.
        ends = np.full(longest, total, dtype=np.int32)
        for at in range(len(ranks) - 1, -1, -1):
            tout[bases[at] : bases[at + 1]] = ends[shared[at] : lengths[at]]
            ends[shared[at] :] = bases[at]
        return FlattenedForest(ids=ids, positions=positions, tout=tout, asked=tuple(found))

    def split(self, ranks: Ranks, most_tokens: int) -> list[Ranks]:
        """Neighbouring paths in parts of at most so many tokens, with the fewest tokens in all.

        Of equal ways the one with the fewest parts; a longer path is a part of its own.
        """
        shared = np.cumsum(self.shared(ranks))
        whole = np.concatenate([[0], np.cumsum(self.lengths[ranks])])
        num_paths = len(ranks)
        best = np.zeros(num_paths + 1, dtype=np.int64)
        begins = np.zeros(num_paths + 1, dtype=np.intp)
        for end in range(1, num_paths + 1):
            # The tokens of the part [begin, end), for each begin; its first path shares nothing.
            tokens = whole[end] - whole[:end] - (shared[end - 1] - shared[:end])
            allowed = tokens <= most_tokens
            allowed[end - 1] = True
            cost = np.where(allowed, best[:end] + tokens, np.iinfo(np.int64).max)
            # The first of equal ones, because the longest parts are the fewest.
            begin = int(np.argmin(cost))
            best[end], begins[end] = cost[begin], begin
        parts = []
        end = num_paths
        while end:
            parts.append(ranks[begins[end] : end])
            end = int(begins[end])
        return parts[::-1]


def common_prefix(one: Ids, two: Ids) -> int:
    """How many tokens two paths have in common from their beginning."""
    most = min(len(one), len(two))
    start, width = 0, 64
    while start < most:
        end = min(start + width, most)
        differs = one[start:end] != two[start:end]
        at = int(differs.argmax())
        if differs[at]:
            return start + at
        # Wider and wider, because paths differ early or have much in common.
        start, width = end, 2 * width
    return most


def _compare(one: Ids, two: Ids) -> int:
    at = common_prefix(one, two)
    if at == min(len(one), len(two)):
        return len(one) - len(two)
    return int(one[at]) - int(two[at])


PACKS_PER_CLAIM = 4
"""The claim budget in packs: enough to fill packs well, little enough to share out at the end."""

LOOK_AHEAD = 64
"""Executions that are considered for the tokens left in a pack; more hardly fill it better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedExecution:
    """An execution with its advantage and the trajectories drawn from it."""

    execution: ExecutionId
    advantage: float
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingResult:
    """The claims of some executions, and what their rows would cost without shared prefixes."""

    claims: tuple[Claim, ...]
    row_tokens: int

    @property
    def num_tokens(self) -> int:
        return sum(pack.num_tokens for claim in self.claims for pack in claim.packs)

    @property
    def num_pairs(self) -> int:
        return sum(pack.num_pairs for claim in self.claims for pack in claim.packs)

    @property
    def num_targets(self) -> int:
        return sum(pack.num_targets for claim in self.claims for pack in claim.packs)


def pack(
    executions: Sequence[AdmittedExecution],
    *,
    pack_tokens: int,
    sharing: bool,
    claim_tokens: int | None = None,
    by_trajectory: bool = False,
) -> PackingResult:
    """Claims that hold every target of the executions once, in the order given.

    An execution whose advantage is exactly zero or that has no targets gets no tokens (SPEC 7.3).
    Rows end before their last target, because nothing later can reach a loss. With `sharing` off
    rows are laid end to end. An execution over `pack_tokens` is spread over packs of one claim,
    neighbouring branches together; one over `claim_tokens` (None: four packs) has a claim of its
    own and is scored first. `by_trajectory` makes each row a share of its own (SPEC 8.4).
    """
    if pack_tokens < 1 or (claim_tokens is not None and claim_tokens < 1):
        raise ConfigError(f"a pack of {pack_tokens} and a claim of {claim_tokens} tokens hold none")
    trained = [
        execution for execution in map(_trained, _distinct(executions)) if execution is not None
    ]
    rows = [(execution, row) for execution in trained for row in execution.rows]
    forest = Forest([row.ids[: row.targets[-1]] for _, row in rows], sharing=sharing)
    budget = PACKS_PER_CLAIM * pack_tokens if claim_tokens is None else claim_tokens
    sketches = _arrange(forest, _jobs(forest, trained, pack_tokens), pack_tokens, budget)
    return PackingResult(
        claims=tuple(_claim(forest, rows, sketch, by_trajectory) for sketch in sketches),
        row_tokens=int(forest.lengths.sum()),
    )


def _distinct(executions: Sequence[AdmittedExecution]) -> Sequence[AdmittedExecution]:
    names = [execution.execution for execution in executions]
    if len(names) != len(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InternalError(f"packing: executions given twice: {', '.join(twice)}")
    return executions


def _trained(one: AdmittedExecution) -> AdmittedExecution | None:
    """The execution with those of its rows that have targets; None when nothing is to be done."""
    if not isfinite(one.advantage):
        raise InternalError(f"packing {one.execution}: its advantage is {one.advantage}")
    for row in one.rows:
        _check(one.execution, row)
    rows = tuple(row for row in one.rows if len(row.targets))
    if one.advantage == 0 or not rows:
        return None
    return AdmittedExecution(execution=one.execution, advantage=one.advantage, rows=rows)


def _check(execution: ExecutionId, row: Row) -> None:
    where = f"packing {execution}, leaf {row.leaf}"
    if len(row.targets) != len(row.logprobs):
        counts = f"{len(row.targets)} targets have {len(row.logprobs)} log-probabilities"
        raise InternalError(f"{where}: {counts}")
    if not len(row.targets):
        return
    if row.targets[0] < 1:
        raise InternalError(f"{where}: a target at {row.targets[0]} has no token before it")
    if row.targets[-1] >= len(row.ids) or (np.diff(row.targets) < 1).any():
        raise InternalError(f"{where}: its targets do not increase within {len(row.ids)} tokens")


_Owned = tuple[AdmittedExecution, Row]
"""A row with its execution."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """An execution to place: its rows as the parts that go to one pack each."""

    parts: tuple[Ranks, ...]
    tokens: int
    """Of all its parts, laid without any other execution."""


@dataclass(slots=True)
class _Sketch:
    """A claim being filled: the ranks that each pack holds."""

    packs: list[Ranks]
    tokens: int
    oversize: bool


def _jobs(forest: Forest, trained: list[AdmittedExecution], pack_tokens: int) -> list[_Job]:
    owners = np.repeat(np.arange(len(trained)), [len(execution.rows) for execution in trained])
    owners = owners[np.array(forest.order, dtype=np.intp)]
    jobs = []
    for number in range(len(trained)):
        ranks = np.flatnonzero(owners == number)
        # A pack as long as the longest row is needed anyway, so the others may fill theirs as far.
        parts = forest.split(ranks, max(pack_tokens, int(forest.lengths[ranks].max())))
        tokens = sum(forest.num_tokens(part) for part in parts)
        jobs.append(_Job(parts=tuple(parts), tokens=tokens))
    return jobs


def _arrange(
    forest: Forest, jobs: list[_Job], pack_tokens: int, claim_tokens: int
) -> list[_Sketch]:
    """Each claim begins with the oldest execution left, and takes what fits of those after it."""
    pending = list(jobs)
    sketches = []
    while pending:
        oldest = pending.pop(0)
        sketch = _Sketch(list(oldest.parts), oldest.tokens, oldest.tokens > claim_tokens)
        sketches.append(sketch)
        at = 0
        while at < len(sketch.packs):
            _fill(forest, sketch, at, pending, pack_tokens, claim_tokens)
            at += 1
            if at == len(sketch.packs):
                _extend(sketch, pending, pack_tokens, claim_tokens)
    return sketches


def _fill(
    forest: Forest,
    sketch: _Sketch,
    at: int,
    pending: list[_Job],
    pack_tokens: int,
    claim_tokens: int,
) -> None:
    """Adds executions to the tokens left in one pack, the largest first."""
    held = forest.num_tokens(sketch.packs[at])
    small = [job for job in pending[:LOOK_AHEAD] if len(job.parts) == 1]
    # Largest by its own tokens: one that shares with the pack fits where a stranger does not.
    for job in sorted(small, key=lambda job: -job.tokens):
        joined = np.union1d(sketch.packs[at], job.parts[0])
        tokens = forest.num_tokens(joined)
        if tokens <= pack_tokens and sketch.tokens + tokens - held <= claim_tokens:
            sketch.packs[at] = joined
            sketch.tokens += tokens - held
            held = tokens
            pending.remove(job)


def _extend(sketch: _Sketch, pending: list[_Job], pack_tokens: int, claim_tokens: int) -> None:
    """Gives a claim new packs for the oldest execution that fits its budget, if there is one."""
    # A pack counts as full, because one that the budget keeps from being filled costs a whole pass.
    room = claim_tokens - max(sketch.tokens, len(sketch.packs) * pack_tokens)
    for job in pending[:LOOK_AHEAD]:
        if max(job.tokens, len(job.parts) * pack_tokens) <= room:
            sketch.packs += job.parts
            sketch.tokens += job.tokens
            pending.remove(job)
            return


def _claim(forest: Forest, rows: list[_Owned], sketch: _Sketch, by_trajectory: bool) -> Claim:
    members: dict[ExecutionId | int, list[int]] = {}
    for number in sorted(forest.order[rank] for part in sketch.packs for rank in part):
        name = number if by_trajectory else rows[number][0].execution
        members.setdefault(name, []).append(number)
    groups = list(members.values())
    owners = {number: share for share, group in enumerate(groups) for number in group}
    packs = []
    for ranks in sketch.packs:
        numbers = [forest.order[rank] for rank in ranks]
        held = [rows[number][1] for number in numbers]
        packs.append(_pack(forest, ranks, held, [owners[number] for number in numbers]))
    return Claim(
        shares=tuple(_share([rows[number] for number in group], by_trajectory) for group in groups),
        packs=tuple(packs),
        oversize=sketch.oversize,
    )


def _share(owned: list[_Owned], by_trajectory: bool) -> Share:
    one, first = owned[0]
    return Share(
        execution=one.execution,
        advantage=one.advantage,
        num_targets=sum(len(row.targets) for _, row in owned),
        trajectory=first.leaf if by_trajectory else None,
    )


def _pack(forest: Forest, ranks: Ranks, rows: list[Row], owners: list[int]) -> Pack:
    laid = forest.lay(ranks, [row.targets - 1 for row in rows])
    predictors = np.concatenate(laid.asked)
    # By predictor, so that targets computed together are predicted from one stretch of states.
    order = np.argsort(predictors, kind="stable")
    counts = [len(row.targets) for row in rows]
    return Pack(
        ids=laid.ids,
        positions=laid.positions,
        tout=laid.tout,
        predictors=predictors[order],
        labels=np.concatenate([row.ids[row.targets] for row in rows])[order],
        behaviour=np.concatenate([row.logprobs for row in rows])[order],
        shares=np.repeat(np.array(owners, dtype=np.int32), counts)[order],
    )
