"""Admitted trajectories become claims: whole executions, each shared prefix laid once."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from gyre.batching.forest import Forest, Ranks
from gyre.trajectory.rows import Row
from gyre.types.errors import ConfigError, InternalError
from gyre.types.ids import ExecutionId
from gyre.types.packs import Claim, Pack, Share

PACKS_PER_CLAIM = 4
"""The claim budget in packs: enough to fill packs well, little enough to share out at the end."""

LOOK_AHEAD = 64
"""Executions that are considered for the room left in a pack; more hardly fill it better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedExecution:
    """An execution with its advantage and the trajectories drawn from it."""

    execution: ExecutionId
    advantage: float
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingResult:
    """What some executions became, and what their rows one by one would have cost."""

    claims: tuple[Claim, ...]
    row_tokens: int
    row_pairs: int
    """Pairs of a token and a token it sees, were every row computed alone."""

    @property
    def num_tokens(self) -> int:
        return sum(pack.num_tokens for claim in self.claims for pack in claim.packs)

    @property
    def num_pairs(self) -> int:
        return sum(pack.num_pairs for claim in self.claims for pack in claim.packs)

    @property
    def num_targets(self) -> int:
        return sum(pack.num_targets for claim in self.claims for pack in claim.packs)

    @property
    def saved_fraction(self) -> float | None:
        """Tokens that need no computation because they are shared; None when there are none."""
        return 1 - self.num_tokens / self.row_tokens if self.row_tokens else None


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
    trained = [one for one in map(_trained, _distinct(executions)) if one is not None]
    rows = [(one, row) for one in trained for row in one.rows]
    forest = Forest([row.ids[: row.targets[-1]] for _, row in rows], sharing=sharing)
    budget = PACKS_PER_CLAIM * pack_tokens if claim_tokens is None else claim_tokens
    sketches = _arrange(forest, _jobs(forest, trained, pack_tokens), pack_tokens, budget)
    return PackingResult(
        claims=tuple(_claim(forest, rows, one, by_trajectory) for one in sketches),
        row_tokens=int(forest.lengths.sum()),
        row_pairs=int((forest.lengths * (forest.lengths + 1) // 2).sum()),
    )


def _distinct(executions: Sequence[AdmittedExecution]) -> Sequence[AdmittedExecution]:
    names = [one.execution for one in executions]
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
    owners = np.repeat(np.arange(len(trained)), [len(one.rows) for one in trained])
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
    """Adds executions to the room of one pack, the largest first."""
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
