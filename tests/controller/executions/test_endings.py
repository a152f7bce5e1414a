"""Every way a harness ends and every kind of evaluator, in real processes."""

import os
import signal
from contextlib import suppress

import pytest
from tests.controller.support.supervised import (
    COUNT_LINES,
    Supervised,
    evaluation,
    order,
    supervised,
)

from gyre.batching.advantages import advantages
from gyre.controller.executions.group_executions import _kept
from gyre.sandboxes.process_tree import SandboxProcesses
from gyre.types.outcomes import Ending, Outcome, Prepared, Status
from gyre.types.tasks import CountedTests

pytestmark = pytest.mark.slow

HALF = "echo one > work; "

ENDINGS = {
    "finished": (HALF + "echo two >> work", Ending.COMPLETED, 0.2),
    "timed out": (HALF + "sleep 600; echo two >> work", Ending.TIMED_OUT, 0.1),
    "crashed": (HALF + "exit 3", Ending.CRASHED, 0.1),
    "killed": (HALF + "kill -9 $$", Ending.CRASHED, 0.1),
    "killed with its sandbox": (HALF + "sleep 600 & sleep 600", Ending.CRASHED, 0.1),
    "cancelled": (HALF + "sleep 600", Ending.CANCELLED, 0.1),
    "never started": (["/no/such/program"], Ending.NEVER_STARTED, None),
}
"""How a harness ends, and what its work is worth."""

UNRESOLVED, FAILED, VALID = Status.UNRESOLVED, Status.FAILED, Status.VALID
EVALUATORS = {
    "valid": (evaluation(COUNT_LINES), [VALID]),
    "zero": (evaluation("echo 0 > $GYRE_RESULTS/reward.txt"), [VALID]),
    "garbage": (evaluation("echo great > $GYRE_RESULTS/reward.txt"), [UNRESOLVED] * 2),
    "hang": (evaluation("setsid sleep 600", attempt_s=0.1), [UNRESOLVED] * 2),
    "flaky": (
        evaluation(f"if test -e $SEEN; then {COUNT_LINES}; else touch $SEEN; exit 7; fi"),
        [FAILED, VALID],
    ),
}
"""What an evaluator does, and the statuses of its attempts."""


PAIRS = [
    *((way, "valid") for way in ENDINGS),
    *(("finished", judge) for judge in EVALUATORS if judge != "valid"),
    ("timed out", "flaky"),
    ("crashed", "zero"),
    ("killed with its sandbox", "hang"),
    ("cancelled", "garbage"),
]
"""Every ending and every evaluator, which know nothing of each other, and some that both fail."""


@pytest.mark.parametrize(("way", "judge"), PAIRS)
def test_every_ending_is_assessed_whatever_the_evaluator_does(way, judge, tmp_path):
    """SPEC 6.1 to 6.4: FAULTS 11, 12, 16, 17, 18."""
    harness, ending, worth = ENDINGS[way]
    rule, statuses = EVALUATORS[judge]
    wanted = order(
        harness,
        judge=rule,
        variables={"SEEN": str(tmp_path / "seen")},
    )
    with supervised(tmp_path / "e1", wanted) as one:
        if way in MEANWHILE:
            one.wait_for_work()
            MEANWHILE[way](one)
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


def cancel(one):
    one.signal(signal.SIGTERM)


def kill_sandbox(one):
    """All programs of the execution, from outside, whatever each of them is doing."""
    (prepared,) = [fact for fact in one.facts if isinstance(fact, Prepared)]
    for member in SandboxProcesses(prepared.mark, owns_descendants=False).alive():
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


MEANWHILE = {
    "timed out": Supervised.pass_time,
    "cancelled": cancel,
    "killed with its sandbox": kill_sandbox,
}
"""What is done to a harness that has done half of its work, so that it ends this way."""


def writes(text, name="reward.txt"):
    return f"printf '%s' '{text}' > $GYRE_RESULTS/{name}"


REPORT = (
    'cases=""; for i in $(seq $(wc -l < work)); do '
    'cases="$cases<testcase name=\\"line-$i\\"/>"; done; '
    'echo "<testsuite>$cases</testsuite>" > $GYRE_RESULTS/junit.xml'
)
"""A test passes for every line of the work."""
COUNTED = {"score": "junit.xml", "tests": CountedTests(count=4)}
GATED = {"score": "reward.json", "gate": "kept"}
STRANGE = {
    "sentinel": (evaluation(writes("-1")), UNRESOLVED, "could not tell"),
    "its own sentinel": (evaluation(writes("0.5"), sentinels=(0.5,)), UNRESOLVED, "could not tell"),
    "not a number": (evaluation(writes("nan")), UNRESOLVED, "could not tell"),
    "empty": (evaluation(writes("")), UNRESOLVED, "missing or empty"),
    "nothing": (evaluation(":"), UNRESOLVED, "missing or empty"),
    "no evidence": (evaluation(writes("1"), evidence=("log",)), UNRESOLVED, "evidence is missing"),
    "shut gate": (
        evaluation(writes('{"reward": 1, "kept": 0}', "reward.json"), **GATED),
        VALID,
        0.0,
    ),
    "nothing above doing nothing": (evaluation(writes("0.5"), baseline=0.5), VALID, 0.0),
    "some of the tests": (evaluation(REPORT, **COUNTED), VALID, 0.25),
    "words instead of tests": (
        evaluation("echo 4 passed; " + writes("4 passed", "junit.xml"), **COUNTED),
        UNRESOLVED,
        "expected a JUnit report",
    ),
}
"""What else an evaluator may leave, and what that is worth to half of the work."""


@pytest.mark.parametrize("judge", STRANGE)
def test_work_that_ran_out_of_time_is_scored_by_what_the_evaluator_leaves(judge, tmp_path):
    """SPEC 6.1 to 6.3: a score of what is there, or none, and never a 0 that nobody said."""
    rule, status, found = STRANGE[judge]
    wanted = order(HALF + "sleep 600; echo two >> work", judge=rule)
    with supervised(tmp_path / "e1", wanted) as one:
        one.wait_for_work()
        one.pass_time()
        record = one.end()
    last = record.assessments[-1]

    assert (Ending.TIMED_OUT, status) == (record.terminated.ending, last.status)
    assert record.terminated.state.reference == last.reference
    if status is VALID:
        assert (Outcome.VALID, found) == (record.closed.outcome, record.closed.score)
    else:
        assert 2 == len(record.assessments)
        assert (Outcome.EXCLUDED, None) == (record.closed.outcome, record.closed.score)
        assert found in last.reason


def test_a_groups_mean_and_deviation_know_nothing_of_what_is_unresolved(tmp_path):
    """SPEC 6.3: a valid zero stays, a placeholder is one, and the unresolved is neither."""
    members = {
        "one": order("echo one > work", judge=evaluation(writes("1"))),
        "zero": order("echo one > work", judge=evaluation(writes("0"))),
        "unresolved": order("echo one > work", judge=evaluation(writes("-1"), attempts=1)),
        "never started": order(["/no/such/program"]),
    }
    kept = {}
    for name, wanted in members.items():
        with supervised(tmp_path / name, wanted) as one:
            kept[name] = _kept(name, one.end().closed)
    rewards = [None if one is None else one.reward for one in kept.values()]
    found = advantages(rewards, divide_by_std=False)

    assert [1.0, 0.0, None, 0.0] == rewards
    assert found[2] is None
    assert [2 / 3, -1 / 3, -1 / 3] == pytest.approx([one for one in found if one is not None])
