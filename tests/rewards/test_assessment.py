"""When there is another attempt, and what an execution closes as."""

import pytest

from gyre.rewards.assessment import assessment, closing, next_attempt
from gyre.types.errors import EvaluatorError
from gyre.types.outcomes import (
    Ending,
    EvaluatorAnswer,
    NoAnswer,
    Outcome,
    State,
    Status,
    Terminated,
)
from gyre.types.tasks import EvaluationRule

RULE = EvaluationRule(argv=("x",), attempts=3, retry_s=2.0, attempt_s=10.0)
STATE = State(folder="/f", reference="abc")


def made(*found):
    return [
        assessment(one, RULE, STATE, evaluator="e", attempt=number)
        for number, one in enumerate(found, start=1)
    ]


def test_silence_is_unresolved_and_failure_is_failed():
    silent, broken, hopeless = made(
        NoAnswer(reason="empty"), EvaluatorError("broke"), EvaluatorError("no", retryable=False)
    )

    assert (Status.UNRESOLVED, "empty", True) == (silent.status, silent.reason, silent.may_retry)
    assert (Status.FAILED, "broke", True) == (broken.status, broken.reason, broken.may_retry)
    assert (Status.FAILED, False) == (hopeless.status, hopeless.may_retry)
    assert {"abc"} == {one.reference for one in (silent, broken, hopeless)}


def test_attempts_go_on_with_growing_pauses_until_one_is_valid():
    silence = NoAnswer(reason="")
    pauses = [
        next_attempt(RULE, made(*[silence] * count), left_s=100.0).pause_s for count in range(3)
    ]

    assert [0.0, 2.0, 4.0] == pauses
    assert next_attempt(RULE, made(*[silence] * 3), left_s=100.0) is None
    assert next_attempt(RULE, made(silence, EvaluatorAnswer(text="0")), left_s=100.0) is None
    assert next_attempt(RULE, made(EvaluatorError("", retryable=False)), left_s=100.0) is None


def test_attempts_stay_within_the_budget():
    silence = made(NoAnswer(reason=""))

    assert 10.0 == next_attempt(RULE, [], left_s=100.0).within_s
    assert 3.0 == next_attempt(RULE, [], left_s=3.0).within_s
    assert 1.0 == next_attempt(RULE, silence, left_s=3.0).within_s
    assert next_attempt(RULE, silence, left_s=2.0) is None
    assert next_attempt(RULE, [], left_s=-1.0) is None


def close(ending, state, found=(), *, surplus=False, calls=None, counts=True):
    end = Terminated(ending=ending, reason="because", elapsed_s=None, state=state)
    known = made(*found)
    return closing(
        end,
        known,
        worth=lambda: known[-1].score,
        is_surplus=surplus,
        committed_calls=calls,
        counts_placeholders=counts,
    )


@pytest.mark.parametrize("ending", [one for one in Ending if one is not Ending.NEVER_STARTED])
def test_the_ending_does_not_decide_the_reward(ending):
    """SPEC 6.1."""
    closed = close(ending, STATE, [EvaluatorAnswer(text="0.5")])

    assert (Outcome.VALID, 0.5) == (closed.outcome, closed.score)


@pytest.mark.parametrize("found", [[], [NoAnswer(reason="")], [EvaluatorError("")]])
def test_what_was_not_judged_in_time_is_excluded(found):
    """SPEC 6.3."""
    closed = close(Ending.COMPLETED, STATE, found)

    assert (Outcome.EXCLUDED, None) == (closed.outcome, closed.score)


@pytest.mark.parametrize(
    ("ending", "calls", "counts", "expected"),
    [
        (Ending.NEVER_STARTED, None, True, Outcome.PLACEHOLDER),
        (Ending.NEVER_STARTED, 0, True, Outcome.PLACEHOLDER),
        (Ending.NEVER_STARTED, None, False, Outcome.EXCLUDED),
        (Ending.NEVER_STARTED, 2, True, Outcome.EXCLUDED),
        (Ending.CRASHED, None, True, Outcome.EXCLUDED),
        (Ending.CRASHED, 0, True, Outcome.PLACEHOLDER),
        (Ending.CRASHED, 1, True, Outcome.EXCLUDED),
        (Ending.CANCELLED, 0, True, Outcome.EXCLUDED),
    ],
)
def test_a_placeholder_left_nothing_and_committed_no_call(ending, calls, counts, expected):
    """SPEC 6.4."""
    assert expected is close(ending, None, calls=calls, counts=counts).outcome


def test_surplus_is_surplus_even_with_a_score():
    assert (
        Outcome.SURPLUS
        is close(Ending.COMPLETED, STATE, [EvaluatorAnswer(text="1")], surplus=True).outcome
    )


def test_whatever_an_evaluator_said_its_reason_can_be_kept_and_shown():
    broken, odd = made(
        EvaluatorError("\x1b[2J" + "x" * 10**6), EvaluatorAnswer(text='{"\ud800\x1b[31m": 1}')
    )

    assert broken.reason.startswith("\\x1b[2Jxxx")
    assert 3_000 > len(broken.reason)
    assert "\\ud800\\x1b[31m" in odd.reason
    assert odd.reason.encode()
