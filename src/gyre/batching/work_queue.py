"""The queue of micro-steps: claims leased to cells, counted once each when reduced at the core.

Rule 1: a claim is with at most one cell, and in at most one gradient that will be summed.
Rule 2: what a cell held returns when it leaves, unless its gradient has reached the core.
Rule 3: a report under a lease that has ended changes nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from gyre.types.errors import InternalError

Work = TypeVar("Work")
"""What a cell needs to do a claim: packs of whole executions, or only a size."""

Found = TypeVar("Found")
"""What a scoring micro-step finds out."""

CORE = 0
"""The cell whose sum the others' gradients are added to (SPEC 3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedClaim(Generic[Work, Found]):
    """A claim for the queue, with its scores where they are known."""

    work: Work
    num_scorings: int = 0
    """Forward-only micro-steps to be done before any backward of it (SPEC 8.3)."""
    scores: tuple[Found, ...] = ()
    """What they found in a former life of the run, all of them or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLease(Generic[Work]):
    """A cell's lease to score one part of a claim, without training on it."""

    lease: int
    cell: int
    claim: int
    work: Work
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLease(Generic[Work, Found]):
    """A cell's lease to add a claim's gradient to its own sum."""

    lease: int
    """Of this cell and this time only; a claim that returns is leased under another number."""
    cell: int
    claim: int
    """Its place in the batch."""
    work: Work
    scores: tuple[Found, ...]
    """What its scorings found, by part."""


Lease: TypeAlias = ScoreLease[Work] | TrainLease[Work, Found]


@dataclass(slots=True)
class _Claim(Generic[Work, Found]):
    work: Work
    num_scorings: int
    scores: dict[int, Found] = field(default_factory=dict)

    @property
    def is_scored(self) -> bool:
        return len(self.scores) == self.num_scorings


@dataclass(slots=True)
class _Cell:
    heard_at: float
    leases: set[int] = field(default_factory=set)
    """Under way."""
    done: dict[int, int] = field(default_factory=dict)
    """Lease and claim of everything that is in the sum of gradients it holds."""


class MicroStepQueue(Generic[Work, Found]):
    """The claims of one batch: which are waiting, leased to a cell, or in a cell's sum."""

    def __init__(self, *, lease_s: float) -> None:
        """A cell that is silent for `lease_s` is to be fenced."""
        self._lease_s = lease_s
        self._claims: list[_Claim[Work, Found]] = []
        self._waiting: list[tuple[int, int | None]] = []
        """A heap of (claim, part to score); None where the claim waits to be trained. One claim is
        never there for both, so parts compare among themselves."""
        self._cells: dict[int, _Cell] = {}
        self._parked: set[int] = set()
        self._leased: dict[int, Lease[Work, Found]] = {}
        self._num_done = 0
        self._num_leases = 0

    @property
    def cells(self) -> tuple[int, ...]:
        """Those that train, in order."""
        return tuple(sorted(self._cells.keys() - self._parked))

    @property
    def num_cells(self) -> int:
        return len(self._cells) - len(self._parked)

    def trains(self, cell: int) -> bool:
        return cell in self._cells and cell not in self._parked

    @property
    def num_claims(self) -> int:
        return len(self._claims)

    @property
    def num_unclaimed(self) -> int:
        """Claims and scorings that a cell could be given now."""
        return len(self._waiting)

    @property
    def is_done(self) -> bool:
        """Every claim is in the gradient of some cell."""
        return self._num_done == len(self._claims)

    @property
    def is_reduced(self) -> bool:
        """Every claim is in the core's sum."""
        held = len(self._cells[CORE].done) if CORE in self._cells else 0
        return held == len(self._claims)

    def holds(self, cell: int) -> frozenset[int]:
        """The leases whose gradients the cell's sum must consist of, no more and no fewer."""
        return frozenset(self._cells[cell].done) if cell in self._cells else frozenset()

    def join(self, cell: int, now: float) -> tuple[int, ...]:
        """Lets the cell claim; claims it held before its restart return to the queue."""
        returned = self.leave(cell)
        self._cells[cell] = _Cell(now)
        return returned

    def leave(self, cell: int) -> tuple[int, ...]:
        """Removes a cell that died, was fenced or went home; returns the claims that it held.

        The core's sum holds what was reduced too, and goes with it.
        """
        if cell not in self._cells:
            return ()
        member = self._cells.pop(cell)
        self._parked.discard(cell)
        returned = [self._return(lease) for lease in sorted(member.leases)]
        for claim in member.done.values():
            heappush(self._waiting, (claim, None))
            returned.append(claim)
        self._num_done -= len(member.done)
        return tuple(sorted(set(returned)))

    def park(self, cell: int) -> tuple[int, ...]:
        """Lets the cell keep its sum while it serves; claims under way return (SPEC 2.5)."""
        member = self._member(cell)
        returned = [self._return(lease) for lease in sorted(member.leases)]
        member.leases.clear()
        self._parked.add(cell)
        return tuple(sorted(returned))

    def resume(self, cell: int) -> None:
        """Lets a parked cell train on with the sum it kept."""
        self._member(cell)
        self._parked.discard(cell)

    def beat(self, cell: int, now: float) -> bool:
        """Notes that the cell lives; False if it has left, which makes its gradient worthless."""
        if cell not in self._cells:
            return False
        self._cells[cell].heard_at = max(now, self._cells[cell].heard_at)
        return True

    def fence(self, now: float) -> tuple[int, ...]:
        """Removes and returns the cells that were silent too long."""
        silent = [cell for cell, one in self._cells.items() if one.heard_at + self._lease_s <= now]
        for cell in silent:
            self.leave(cell)
        return tuple(sorted(silent))

    def offer(self, offers: Sequence[QueuedClaim[Work, Found]]) -> None:
        """Adds claims to the batch, behind those already there."""
        for offer in offers:
            claim = len(self._claims)
            made = _Claim(offer.work, offer.num_scorings, dict(enumerate(offer.scores)))
            self._claims.append(made)
            parts = (None,) if made.is_scored else range(offer.num_scorings)
            for part in parts:
                heappush(self._waiting, (claim, part))

    def claim(self, cell: int, now: float) -> Lease[Work, Found] | None:
        """Leases the first claim that waits to this cell; None when none waits.

        A cell that may have been fenced asks `beat` first.
        """
        self._member(cell)
        if cell in self._parked:
            raise InternalError(f"cell {cell}: claims while it is parked")
        self.beat(cell, now)
        if not self._waiting:
            return None
        number, part = heappop(self._waiting)
        claim = self._claims[number]
        lease = self._num_leases
        self._num_leases += 1
        granted: Lease[Work, Found]
        if part is None:
            scores = tuple(claim.scores[at] for at in range(claim.num_scorings))
            granted = TrainLease(
                lease=lease, cell=cell, claim=number, work=claim.work, scores=scores
            )
        else:
            granted = ScoreLease(lease=lease, cell=cell, claim=number, work=claim.work, part=part)
        self._leased[lease] = granted
        self._cells[cell].leases.add(lease)
        return granted

    def scored(self, lease: int, found: Found) -> bool:
        """Keeps a part's scores for good, as weights are fixed; the last part releases training."""
        granted = self._leased.get(lease)
        if granted is None:
            return False
        if not isinstance(granted, ScoreLease):
            raise InternalError(f"lease {lease}: is for training, and was reported as scored")
        self._end(lease)
        claim = self._claims[granted.claim]
        claim.scores[granted.part] = found
        if claim.is_scored:
            heappush(self._waiting, (granted.claim, None))
        return True

    def done(self, lease: int) -> bool:
        """A claim is in its cell's sum; False says that it must not be there. May be said twice."""
        granted = self._leased.get(lease)
        if granted is None:
            return any(lease in member.done for member in self._cells.values())
        if not isinstance(granted, TrainLease):
            raise InternalError(f"lease {lease}: is for scoring, and was reported as trained")
        self._end(lease)
        self._cells[granted.cell].done[lease] = granted.claim
        self._num_done += 1
        return True

    def hand_back(self, lease: int) -> bool:
        """Puts a claim back that the cell could not do, with its sum as it was before."""
        if lease not in self._leased:
            return False
        self._cells[self._leased[lease].cell].leases.remove(lease)
        self._return(lease)
        return True

    def reduce(self, cell: int, leases: Collection[int]) -> bool:
        """Notes that the cell's gradient, the sum over these leases, has arrived at the core.

        False means that it is not what the cell should hold and must not be added; nothing moved.
        """
        if cell == CORE:
            raise InternalError("the core's own gradient is at the core already")
        if CORE not in self._cells or cell not in self._cells:
            return False
        member = self._cells[cell]
        if set(leases) != set(member.done):
            return False
        self._cells[CORE].done.update(member.done)
        member.done.clear()
        return True

    def clear(self) -> None:
        """Empties the queue after the step; the cells stay for the next batch."""
        self._claims.clear()
        self._waiting.clear()
        self._leased.clear()
        self._num_done = 0
        for member in self._cells.values():
            member.leases.clear()
            member.done.clear()

    def _member(self, cell: int) -> _Cell:
        if cell not in self._cells:
            raise InternalError(f"cell {cell}: has not joined, or was fenced")
        return self._cells[cell]

    def _end(self, lease: int) -> None:
        granted = self._leased.pop(lease)
        self._cells[granted.cell].leases.remove(lease)

    def _return(self, lease: int) -> int:
        granted = self._leased.pop(lease)
        part = granted.part if isinstance(granted, ScoreLease) else None
        heappush(self._waiting, (granted.claim, part))
        return granted.claim
