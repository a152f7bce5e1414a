"""The driver thread: claims as a stream of micro-steps, messages in between.

Claims of a cell as one stream of micro-steps, in the order in which they came (SPEC 3.5).

Rule 1: a claim that is trained is scored before, here or by another cell (SPEC 8.3).
Rule 2: what can be trained goes before what comes after it.

The thread that drives a cell's pipeline: claims stream, orders come between two streams.

Rule 1: an order finds the stream closed, so that all that was claimed is in the ranks' sums.
Rule 2: what fails in the stream loses the cell, because its sum is then of nothing that is known.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import fsum
from threading import Condition, Thread
from time import perf_counter
from typing import Any, TypeVar

from gyre.cell.ranks.rank_group import RankGroup
from gyre.config.sections import LossConfig
from gyre.trainer.distributed.pipeline import MicroStep, MicroStepResult, StreamEnd
from gyre.trainer.loss import add_scores, clipped_loss, is_kept, total
from gyre.types.errors import CellError, CellGone, GyreError
from gyre.types.training import Claim, Measures, Pack, Score


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
    """The source of a pipeline that pauses while it is empty and closes once `is_closing`."""

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
        releases = any(
            piece.of.lease is not None and piece.of.scores is None for piece in self._taken
        )
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
        one.losses.append(self._loss(piece) if result.loss is None else result.loss)
        one.measures.append(result.measures if piece.trains else _clipped(result.measures))
        one.num_scored += not piece.trains
        if len(one.losses) == len(one.claim.packs):
            self._complete(one)

    def unfinished(self) -> list[PendingClaim]:
        """Claims that have come to nothing yet, oldest first; they are no longer here."""
        found = dict.fromkeys(piece.of for piece in (*self._taken, *self._waiting))
        self._taken.clear()
        self._waiting.clear()
        return [claim for claim in found if not claim.done.done()]

    def _loss(self, piece: _Piece) -> float:
        """Of a pack without a gradient, which passed forward only."""
        return clipped_loss(
            piece.pack.shares.tolist(),
            shares=piece.of.claim.shares,
            num_executions=piece.of.num_executions,
            section=self._section,
        )

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


END_S = 10.0
"""How long the thread may take to notice that the cell ends."""
R = TypeVar("R")


class _Act:
    """Something that the thread is to do between two streams."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done: Future[Any] = Future()


class Driver:
    """The thread that drives a cell's pipeline, and the queue of claims and orders for it."""

    def __init__(
        self,
        rank_group: RankGroup,
        objective: LossConfig,
        *,
        life_s: float,
    ) -> None:
        """A paused stream says so every `life_s`."""
        self.held: set[int] = set()
        """Leases that are in the ranks' sums, or on their way there."""
        self.failure: CellError | None = None
        """What the cell was lost by, or that it ends."""
        self.lost: Future[CellError] = Future()
        """Done once the cell is lost."""
        self._rank_group = rank_group
        self._trainer = rank_group.part.trainer
        self._life_s = life_s
        self._inbox: deque[PendingClaim | _Act] = deque()
        self._came = Condition()
        self._acting: _Act | None = None
        self._feed = MicroStepStream(objective, self._next_claim, self.held)
        self._thread = Thread(target=self._work, name="driver", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], R]) -> R:
        """What it gives, done by the thread while nothing streams."""
        act = _Act(work)
        self._put(act)
        found: R = act.done.result()
        return found

    def claimed(self, one: PendingClaim) -> ClaimResult:
        """What the claim came to; its gradient is in the sums when the stream is next closed."""
        self._put(one)
        return one.done.result()

    def fail(self, error: CellError) -> None:
        """The cell is lost; the first to say so is right."""
        with self._came:
            if self.failure is not None:
                return
            self.failure = error
            self._came.notify()
        self.lost.set_result(error)

    def end(self) -> None:
        """Claims that are waited for fail; the driver's thread ends or is given up."""
        with self._came:
            self.failure = self.failure or CellGone("the cell ends")
            self._came.notify()
        self._rank_group.end()
        self._thread.join(END_S)
        self._refuse_all()

    def _put(self, item: PendingClaim | _Act) -> None:
        with self._came:
            if self.failure is not None:
                raise CellGone(f"the cell is lost: {self.failure}")
            self._inbox.append(item)
            self._came.notify()

    # What follows runs in the thread.

    def _work(self) -> None:
        while self.failure is None:
            try:
                self._turn()
            except CellError as error:
                self.fail(error)
        self._rank_group.part.drop()
        self._refuse_all()

    def _turn(self) -> None:
        """One order, or the claims that are there, or a sign of life to a stream that is open."""
        with self._came:
            self._came.wait_for(
                lambda: bool(self._inbox) or self.failure is not None,
                timeout=self._life_s if self._rank_group.is_streaming else None,
            )
            if self.failure is not None:
                return
            first = self._inbox[0] if self._inbox else None
            if isinstance(first, _Act):
                self._inbox.popleft()
        if isinstance(first, _Act):
            self._act(first)
        elif first is not None and self._trainer.is_resting:
            while (one := self._next_claim()) is not None:
                one.done.set_exception(CellError("the trainer rests: restore it first"))
        else:
            self._rank_group.stream()
            self._trainer.drive(self._feed)

    def _act(self, act: _Act) -> None:
        self._acting = act
        self._close()
        try:
            found = act.work()
        except CellGone:
            raise
        except GyreError as error:
            act.done.set_exception(error)
        else:
            act.done.set_result(found)
        self._acting = None

    def _close(self) -> None:
        """What is in flight has come back, on every rank."""
        if not self._rank_group.is_streaming:
            return
        self._feed.is_closing = True
        self._trainer.drive(self._feed)
        self._feed.is_closing = False
        self._rank_group.streamed()

    def _next_claim(self) -> PendingClaim | None:
        """The first that came, unless an order came before it."""
        with self._came:
            if not self._inbox or isinstance(self._inbox[0], _Act):
                return None
            first = self._inbox.popleft()
        assert isinstance(first, PendingClaim)
        return first

    def _refuse_all(self) -> None:
        """The first that waits gets the failure itself, because it may be its fault."""
        with self._came:
            acting = [] if self._acting is None else [self._acting]
            left = [*acting, *self._feed.unfinished(), *self._inbox]
            self._inbox.clear()
            self._acting = None
        failure = self.failure
        for claim in left:
            # The driver's thread may have answered it at the last moment.
            with suppress(InvalidStateError):
                claim.done.set_exception(failure or CellGone("the cell ends"))
            failure = CellGone(f"the cell is lost: {self.failure}")
