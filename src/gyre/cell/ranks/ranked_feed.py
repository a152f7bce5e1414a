"""Claims of a cell as one stream of micro-steps, in the order in which they came (SPEC 3.5).

Rule 1: a claim that is trained is scored before, here or by whoever sent it (SPEC 8.3).
Rule 2: what can be trained goes before what comes after it.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import fsum
from time import perf_counter

from gyre.config.sections import LossConfig
from gyre.trainer.distributed.messages import MicroStep, MicroStepResult
from gyre.trainer.distributed.pipeline import StreamEnd
from gyre.trainer.loss import add_scores, is_kept, total
from gyre.types.errors import CellError
from gyre.types.packs import Claim, Pack, Score
from gyre.types.reports import Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """What a claim came to."""

    scores: tuple[Score, ...]
    loss: float
    measures: Measures
    num_skipped: int
    """Packs without a backward pass, because none of their targets gives a gradient."""
    seconds: float
    """From its first micro-step on; others were under way meanwhile."""


@dataclass(slots=True, eq=False)
class PendingClaim:
    """A claim that a cell has in hand."""

    claim: Claim
    num_executions: int
    lease: int | None
    """Under which its gradient is in the sum; None where it is only scored."""
    scores: tuple[Score, ...] | None
    done: "Future[ClaimResult]" = field(default_factory=Future)
    began_s: float = 0.0
    num_scored: int = 0
    found: list[tuple[Score, ...]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    measures: list[Measures] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A pack of a claim, and what is done with it."""

    of: PendingClaim
    pack: Pack
    trains: bool


class MicroStepStream:
    """The source of a pipeline that pauses when nothing is there and closes when it is told to."""

    def __init__(
        self, section: LossConfig, more: Callable[[], PendingClaim | None], held: set[int]
    ) -> None:
        """`more` gives the next claim, if there is one; `held` are leases that are in the sum."""
        self.is_closing = False
        self._section = section
        self._more = more
        self._held = held
        self._waiting: deque[_Piece] = deque()
        self._taken: deque[_Piece] = deque()

    def take(self) -> MicroStep | StreamEnd:
        while not self._waiting and (claimed := self._more()) is not None:
            self.offer(claimed)
        if self._waiting:
            piece = self._waiting.popleft()
            self._taken.append(piece)
            one = piece.of
            one.began_s = one.began_s or perf_counter()
            return MicroStep(
                pack=piece.pack,
                shares=one.claim.shares,
                num_executions=one.num_executions,
                scores=one.scores if piece.trains else None,
            )
        releases = any(one.of.lease is not None and one.of.scores is None for one in self._taken)
        return StreamEnd.CLOSED if self.is_closing and not releases else StreamEnd.PAUSED

    def offer(self, one: PendingClaim) -> None:
        if one.lease is not None and one.lease in self._held:
            message = f"lease {one.lease} is in the sum already"
            one.done.set_exception(CellError(message, retryable=False))
        elif one.scores is None or one.lease is None:
            self._waiting.extend(_Piece(one, pack, trains=False) for pack in one.claim.packs)
            if not one.claim.packs:
                self._scored(one)
        else:
            self._release(one, one.scores)

    def finished(self, result: MicroStepResult) -> None:
        piece = self._taken.popleft()
        one = piece.of
        if one.lease is None or one.scores is None:
            one.found.append(result.scores)
            if len(one.found) == len(one.claim.packs):
                self._scored(one)
            return
        one.losses.append(result.loss or 0.0)
        one.measures.append(result.measures if piece.trains else _clipped(result.measures))
        one.num_scored += not piece.trains
        if len(one.losses) == len(one.claim.packs):
            self._complete(one)

    def unfinished(self) -> list[PendingClaim]:
        """Claims that have come to nothing yet, oldest first; they are no longer here."""
        found = dict.fromkeys(piece.of for piece in (*self._taken, *self._waiting))
        self._taken.clear()
        self._waiting.clear()
        return [one for one in found if not one.done.done()]

    def _scored(self, one: PendingClaim) -> None:
        scores = add_scores(one.found)
        if one.lease is None:
            one.scores = scores
            self._complete(one)
        else:
            self._release(one, scores)

    def _release(self, one: PendingClaim, scores: tuple[Score, ...]) -> None:
        """Packs without a gradient pass forward only, for what is measured there."""
        one.scores = scores
        pairs = zip(one.claim.shares, scores, strict=True)
        gives = [is_kept(share, score, self._section) and share.advantage for share, score in pairs]
        pieces = [
            _Piece(one, pack, trains=any(gives[share] for share in set(pack.shares.tolist())))
            for pack in one.claim.packs
        ]
        self._waiting.extendleft(reversed(pieces))
        if not pieces:
            self._complete(one)

    def _complete(self, one: PendingClaim) -> None:
        if one.lease is not None:
            self._held.add(one.lease)
        assert one.scores is not None
        one.done.set_result(
            ClaimResult(
                scores=one.scores,
                loss=fsum(one.losses),
                measures=total(one.measures),
                num_skipped=one.num_scored,
                seconds=perf_counter() - one.began_s if one.began_s else 0.0,
            )
        )


def _clipped(seen: Measures) -> Measures:
    return replace(seen, num_raised_clipped=seen.num_raised, num_lowered_clipped=seen.num_lowered)
