"""Every way a harness ends with every kind of evaluator, in real processes."""

import signal

import pytest
from tests.run.supervised import COUNT_LINES, PATIENCE_S, evaluation, order, supervised

from gyre.words.outcomes import Ending, Outcome, Status

pytestmark = pytest.mark.slow

HALF = "echo one > work; "
SHORT_S = 0.5
"""A deadline that is meant to come."""

ENDINGS = {
    "finished": (HALF + "echo two >> work", Ending.COMPLETED, 0.2),
    "timed out": (HALF + "sleep 60; echo two >> work", Ending.TIMED_OUT, 0.1),
    "crashed": (HALF + "exit 3", Ending.CRASHED, 0.1),
    "killed": (HALF + "kill -9 $$", Ending.CRASHED, 0.1),
    "cancelled": (HALF + "sleep 60", Ending.CANCELLED, 0.1),
    "never started": (["/no/such/program"], Ending.NEVER_STARTED, None),
}
"""How a harness ends, and what its work is worth."""

UNRESOLVED, FAILED, VALID = Status.UNRESOLVED, Status.FAILED, Status.VALID
EVALUATORS = {
    "valid": (evaluation(COUNT_LINES), [VALID]),
    "zero": (evaluation("echo 0 > $GYRE_RESULTS/reward.txt"), [VALID]),
    "garbage": (evaluation("echo great > $GYRE_RESULTS/reward.txt"), [UNRESOLVED] * 2),
    "hang": (evaluation("setsid sleep 60", attempt_s=0.1), [UNRESOLVED] * 2),
    "flaky": (
        evaluation(f"if test -e $SEEN; then {COUNT_LINES}; else touch $SEEN; exit 7; fi"),
        [FAILED, VALID],
    ),
}
"""What an evaluator does, and the statuses of its attempts."""


@pytest.mark.parametrize("judge", EVALUATORS)
@pytest.mark.parametrize("way", ENDINGS)
def test_every_ending_is_assessed_by_every_evaluator(way, judge, tmp_path):
    """SPEC 6.1 to 6.4: FAULTS 11, 12, 16, 17, 18."""
    harness, ending, worth = ENDINGS[way]
    rule, statuses = EVALUATORS[judge]
    wanted = order(
        harness,
        judge=rule,
        variables={"SEEN": str(tmp_path / "seen")},
        agent_s=SHORT_S if way == "timed out" else PATIENCE_S,
    )
    with supervised(tmp_path / "e1", wanted) as one:
        if way == "cancelled":
            one.wait_for_work()
            one.signal(signal.SIGTERM)
        record = one.end()

    assert ending is record.terminated.ending
    if worth is None:
        assert (Outcome.PLACEHOLDER, None) == (record.closed.outcome, record.closed.score)
        assert () == record.assessments
        assert "/no/such/program" in record.closed.reason
        return
    assert statuses == [assessment.status for assessment in record.assessments]
    if statuses[-1] is VALID:
        score = 0.0 if judge == "zero" else worth
        assert (Outcome.VALID, score) == (record.closed.outcome, record.closed.score)
    else:
        assert (Outcome.EXCLUDED, None) == (record.closed.outcome, record.closed.score)
