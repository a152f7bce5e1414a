"""Claims are scored first, and their scores release the micro-steps that train (SPEC 8.3).

Rule 1: a claim's packs are trained when all of them are scored, and not before.
Rule 2: what can be trained goes before what can be scored, so that few scores wait.
Rule 3: a pack whose every target is clipped is counted and not trained.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from gyre.config.sections import LossConfig
from gyre.model.network import Network
from gyre.trainer.distributed.pipeline import MicroStep, MicroStepResult, StreamEnd
from gyre.trainer.logprobs import check_claim
from gyre.trainer.loss import Measures, add_scores, clipped_loss, is_kept, total
from gyre.types.errors import InternalError
from gyre.types.training import Claim, Pack, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightClaim:
    """A claim whose gradient is under way through the stages."""

    claim: Claim
    scores: tuple[Score, ...]
    """Per share."""
    loss: float
    """Its part of the batch's loss."""
    measures: Measures
    num_skipped: int
    """Packs that gave no gradient and were not trained."""


@dataclass(slots=True)
class _Open:
    """A claim between being offered and being trained."""

    claim: Claim
    scored: list[MicroStepResult] = field(default_factory=list)
    scores: tuple[Score, ...] | None = None
    num_running: int = 0
    losses: list[float] = field(default_factory=list)
    skipped: list[float] = field(default_factory=list)
    """Losses of packs that are not trained."""
    measures: list[Measures] = field(default_factory=list)


class Releases:
    """A source of micro-steps for one batch, from claims offered while it runs."""

    def __init__(self, network: Network, section: LossConfig, *, num_executions: int) -> None:
        """`num_executions` is B*N of the batch."""
        self._network = network
        self._section = section
        self._num_executions = num_executions
        self._to_score: deque[tuple[_Open, Pack]] = deque()
        self._to_train: deque[tuple[_Open, Pack]] = deque()
        self._taken: deque[_Open] = deque()
        self._is_ended = False
        self.trained: list[InFlightClaim] = []
        """Claims that are through, in the order in which they were."""

    def offer(self, claim: Claim, scores: Sequence[Score] | None = None) -> None:
        """One more claim; scores that are known are not computed again.

        One that cannot be computed is refused by name, and nothing is changed.
        """
        if self._is_ended:
            raise InternalError("a claim is offered to a batch that has ended")
        check_claim(claim, self._network)
        one = _Open(claim)
        if scores is None and claim.packs:
            self._to_score.extend((one, pack) for pack in claim.packs)
        else:
            self._release(one, tuple(scores or ()))

    def end(self) -> None:
        """No more claims come; once these are through, the batch is closed."""
        self._is_ended = True

    def take(self) -> MicroStep | StreamEnd:
        for waiting in (self._to_train, self._to_score):
            if waiting:
                one, pack = waiting.popleft()
                self._taken.append(one)
                return self._micro_step(one, pack)
        # Scores on their way will release more.
        waits = any(one.scores is None for one in self._taken)
        return StreamEnd.CLOSED if self._is_ended and not waits else StreamEnd.PAUSED

    def finished(self, result: MicroStepResult) -> None:
        one = self._taken.popleft()
        if result.loss is None:
            one.scored.append(result)
            if len(one.scored) == len(one.claim.packs):
                self._release(one, add_scores([each.scores for each in one.scored]))
            return
        one.losses.append(result.loss)
        one.measures.append(result.measures)
        one.num_running -= 1
        self._complete(one)

    def _micro_step(self, one: _Open, pack: Pack) -> MicroStep:
        return MicroStep(
            pack=pack,
            shares=one.claim.shares,
            num_executions=self._num_executions,
            scores=one.scores,
        )

    def _release(self, one: _Open, scores: tuple[Score, ...]) -> None:
        one.scores = scores
        pairs = zip(one.claim.shares, scores, strict=True)
        gives = [is_kept(share, score, self._section) and share.advantage for share, score in pairs]
        for index, pack in enumerate(one.claim.packs):
            if not one.scored or any(gives[share] for share in set(pack.shares.tolist())):
                one.num_running += 1
                self._to_train.append((one, pack))
            else:
                seen = one.scored[index].measures
                clipped = replace(
                    seen,
                    num_raised_clipped=seen.num_raised,
                    num_lowered_clipped=seen.num_lowered,
                )
                one.measures.append(clipped)
                one.skipped.append(self._clipped_loss(one, pack))
        self._complete(one)

    def _clipped_loss(self, one: _Open, pack: Pack) -> float:
        return clipped_loss(
            pack.shares.tolist(),
            shares=one.claim.shares,
            num_executions=self._num_executions,
            section=self._section,
        )

    def _complete(self, one: _Open) -> None:
        if one.num_running:
            return
        self.trained.append(
            InFlightClaim(
                claim=one.claim,
                scores=one.scores or (),
                loss=fsum([*one.losses, *one.skipped]),
                measures=total(one.measures),
                num_skipped=len(one.skipped),
            )
        )
