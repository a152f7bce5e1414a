"""What executions left behind, for whoever looks at them."""

import json

import pytest
from tests.controller.support.supervised import order

from gyre.observability.dashboard import execution_view
from gyre.observability.dashboard.execution_view import leavings
from gyre.rollout import facts
from gyre.rollout.facts import FactsFile
from gyre.rollout.spec import write_order
from gyre.types.outcomes import (
    Assessed,
    Assessment,
    Closed,
    Ending,
    Launched,
    Outcome,
    OutcomeRecord,
    State,
    Status,
    StepAssessed,
    Terminated,
)


def assessment(status, score, attempt):
    return Assessment(
        status=status,
        score=score,
        reason=None if score is not None else "no score",
        reference="abc",
        evaluator="command",
        attempt=attempt,
    )


@pytest.fixture
def attempt(tmp_path):
    """An execution that timed out and was assessed at the second attempt."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "notes").write_text("one\n")
    folder = tmp_path / "attempts" / "e1"
    write_order(folder, order("true", files=str(files)))
    (folder / "frozen").mkdir()
    (folder / "frozen" / "notes").write_text("one\ntwo\n")
    (folder / "output.txt").write_text("Working.\n")
    terminated = Terminated(
        ending=Ending.TIMED_OUT,
        reason="after 3 s",
        elapsed_s=3.0,
        state=State(folder=str(folder / "frozen"), reference="abc"),
    )
    tries = (assessment(Status.UNRESOLVED, None, 1), assessment(Status.VALID, 0.5, 2))
    closed = Closed(outcome=Outcome.VALID, score=0.5, reason=None)
    writer = FactsFile(folder)
    told = [Launched(monotonic_s=1.0, boot="b"), terminated]
    for at, fact in enumerate([*told, *(Assessed(assessment=one) for one in tries), closed]):
        writer.append(fact, at=100.0 + at)
    writer.close()
    facts.write(
        folder,
        OutcomeRecord(
            execution="e1",
            task="count",
            was_launched=True,
            terminated=terminated,
            assessments=tries,
            closed=closed,
        ),
    )
    return folder


def test_what_is_left_is_told_in_plain_values(attempt):
    found = json.loads(json.dumps(leavings(attempt)))

    assert ("count", "count to two", "timed-out", "after 3 s", "valid", 0.5) == (
        found["task"],
        found["instruction"],
        found["ending"],
        found["ending_reason"],
        found["outcome"],
        found["score"],
    )
    assert ["Launched", "Terminated", "Assessed", "Assessed", "Closed"] == [
        one["fact"] for one in found["facts"]
    ]
    assert [("unresolved", None, "no score", 102.0), ("valid", 0.5, None, 103.0)] == [
        (one["status"], one["score"], one["reason"], one["at"]) for one in found["assessments"]
    ]
    assert {"text": "Working.\n", "left_out_bytes": 0} == found["output"]
    assert None is found["evaluation"]
    assert [("notes", "changed", ["@@ -1 +1,2 @@", " one", "+two"])] == [
        (one["path"], one["change"], one["lines"]) for one in found["workspace"]["files"]
    ]


def test_an_execution_that_runs_has_no_ending_and_no_score(tmp_path):
    write_order(tmp_path, order("true"))
    found = leavings(tmp_path)

    assert (None, None, None, [], None) == (
        found["ending"],
        found["outcome"],
        found["score"],
        found["assessments"],
        found["workspace"],
    )


def test_assessments_of_steps_say_which(tmp_path):
    write_order(tmp_path, order("true"))
    writer = FactsFile(tmp_path)
    one = assessment(Status.VALID, 1.0, 1)
    writer.append(StepAssessed(step=1, assessment=one, is_enough=True), at=1.0)
    writer.close()

    assert [(1, 1.0)] == [
        (said["step"], said["score"]) for said in leavings(tmp_path)["assessments"]
    ]


def test_of_what_was_printed_the_end_is_told(attempt, monkeypatch):
    monkeypatch.setattr(execution_view, "MAX_TAIL_BYTES", 4)

    assert {"text": "ing.\n"[-4:], "left_out_bytes": 5} == leavings(attempt)["output"]


def test_where_the_tasks_files_are_gone_everything_counts_as_new(attempt, tmp_path):
    (tmp_path / "files" / "notes").unlink()
    (tmp_path / "files").rmdir()
    found = leavings(attempt)["workspace"]

    assert (False, ["added"]) == (
        found["is_begin_known"],
        [one["change"] for one in found["files"]],
    )


def test_a_frozen_state_that_is_a_link_is_not_looked_into(attempt, tmp_path):
    (attempt / "frozen").rename(tmp_path / "elsewhere")
    (attempt / "frozen").symlink_to(tmp_path / "elsewhere")

    assert None is leavings(attempt)["workspace"]


def test_a_folder_without_an_order_left_nothing(tmp_path):
    assert None is leavings(tmp_path)
