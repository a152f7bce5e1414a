"""What an evaluator's answer means, whether there is another attempt, and the final outcome.

Rule 1: what is not a score is unresolved and never 0 (SPEC 6.3).
Rule 2: only a placeholder stands for a 0 that no evaluator gave, and is made only here (SPEC 6.4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from gyre.rewards.score import score_of
from gyre.types.errors import EvaluatorError, visible
from gyre.types.outcomes import (
    Assessment,
    Closed,
    Ending,
    EvaluatorAnswer,
    Finding,
    NoAnswer,
    Outcome,
    State,
    Status,
    Terminated,
)
from gyre.types.tasks import EvaluationRule

MOST_REASON = 2_000
"""Letters of what an evaluator said of its failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorAttempt:
    """An attempt at an assessment that the budget still allows: when, and for how long."""

    number: int
    pause_s: float
    """Before it begins."""
    within_s: float


def assessment(
    found: Finding | EvaluatorError,
    evaluation: EvaluationRule,
    state: State,
    *,
    evaluator: str,
    attempt: int,
) -> Assessment:
    """What an evaluator's answer, silence or failure says of the state."""
    score, may_retry = None, True
    match found:
        case EvaluatorAnswer():
            try:
                score = score_of(found, evaluation)
                status, reason = Status.VALID, None
            except ValueError as error:
                status, reason = Status.UNRESOLVED, str(error)
        case NoAnswer():
            status, reason = Status.UNRESOLVED, found.reason
        case EvaluatorError():
            status, reason, may_retry = Status.FAILED, str(found), found.retryable
        case _:
            assert_never(found)
    return Assessment(
        status=status,
        score=score,
        reason=None if reason is None else visible(reason, MOST_REASON),
        reference=state.reference,
        evaluator=evaluator,
        attempt=attempt,
        may_retry=may_retry,
    )


def next_attempt(
    evaluation: EvaluationRule, made: Sequence[Assessment], *, left_s: float
) -> EvaluatorAttempt | None:
    """What to try next on the same state; None: it is valid, hopeless, or the budget is spent."""
    if made and (made[-1].status is Status.VALID or not made[-1].may_retry):
        return None
    if len(made) >= evaluation.attempts:
        return None
    pause_s = evaluation.retry_s * 2 ** (len(made) - 1) if made else 0.0
    within_s = min(evaluation.attempt_s, left_s - pause_s)
    if within_s <= 0:
        return None
    return EvaluatorAttempt(number=len(made) + 1, pause_s=pause_s, within_s=within_s)


def closing(
    terminated: Terminated,
    made: Sequence[Assessment],
    *,
    worth: Callable[[], float],
    is_surplus: bool,
    committed_calls: int | None,
    counts_placeholders: bool,
) -> Closed:
    """What the execution closes as when no further attempt is made at its state.

    `worth`: its reward, if the last of the attempts is valid.
    """
    if is_surplus:
        return Closed(outcome=Outcome.SURPLUS, score=None, reason="the group has enough rewards")
    if terminated.state is not None and made and made[-1].status is Status.VALID:
        return Closed(outcome=Outcome.VALID, score=worth(), reason=None)
    if terminated.state is not None:
        reason = made[-1].reason if made else "the budget ended before the first attempt"
        return Closed(outcome=Outcome.EXCLUDED, score=None, reason=reason)
    if counts_placeholders and _left_nothing(terminated, committed_calls):
        return Closed(outcome=Outcome.PLACEHOLDER, score=None, reason=terminated.reason)
    return Closed(outcome=Outcome.EXCLUDED, score=None, reason=terminated.reason)


def _left_nothing(terminated: Terminated, committed_calls: int | None) -> bool:
    """No policy call was committed and nothing is assessable, and the run did not cancel it."""
    if terminated.ending is Ending.CANCELLED:
        return False
    if committed_calls is None:
        return terminated.ending is Ending.NEVER_STARTED
    return committed_calls == 0
