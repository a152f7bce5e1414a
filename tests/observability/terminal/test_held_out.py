"""Held-out evaluation as a state, a page, a stream and a tracker show it."""

import io
from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, journal, simulated

from gyre.observability.dashboard.views import ORDERS, ListingQuery, listed
from gyre.observability.history.run import RunHistory
from gyre.observability.history.state import RunState
from gyre.observability.metrics import RunMetrics
from gyre.observability.terminal.colors import printed
from gyre.observability.terminal.progress import WIDTH, Progress, block
from gyre.observability.terminal.summary import MOST_ROUNDS, summary
from gyre.scheduler.messages import EvaluationEnded, EvaluationId, EvaluationRequested, RunStarted
from gyre.testing.trackers import MemoryTracker
from gyre.types.outcomes import Outcome
from gyre.types.run_events import EvaluationRound, EvaluationScored

SHAPE = replace(SMALL.shape, evaluation_slots=4)


def scored(number, *, version=0, score=1.0):
    return EvaluationScored(
        evaluation=number,
        execution=f"eval-{number:06d}",
        task=f"task-{number}",
        version=version,
        versions=(version,),
        outcome="excluded" if score is None else "valid",
        score=score,
    )


def whole(version, mean=0.5, error=0.125, valid=3):
    return EvaluationRound(
        version=version, num_tasks=4, num_valid=valid, mean=mean, standard_error=error
    )


@pytest.fixture
def page(tmp_path):
    def made(*rounds):
        facts = [*simulated(SMALL)[1]]
        last = facts[-1][0]
        facts += [(last, one) for one in rounds]
        return summary(journal(tmp_path / "journal", SMALL, facts)).splitlines()

    return made


def rows(page):
    start = page.index("Held-out score by version") + 1
    return page[start : page.index("", start)]


def drawn(run):
    """Lines of the block on a terminal that are about it."""
    lines = printed(block(run, 1.0), width=None, colour=False)
    return [line for line in lines if "held-out" in line]


def test_a_state_keeps_rounds_by_version_and_scores_until_their_round():
    run = RunState(SHAPE)
    run.record_all([(0.0, RunStarted()), (1.0, scored(0)), (1.0, scored(0)), (1.0, scored(1))])

    assert {0, 1} == run.scored
    run.record_all([(2.0, whole(0)), (2.0, whole(0)), (3.0, scored(2, version=3))])
    assert [(2.0, whole(0))] == run.steps.rounds
    assert {2} == run.scored


def test_the_page_has_a_row_for_each_version(page):
    nothing = whole(6, mean=None, error=None, valid=0)

    assert [
        "  version 0    0.250 +- 0.125, 3 of 4 tasks",
        "  version 3    1.000, 1 of 4 tasks",
        "  version 6    no valid score, 0 of 4 tasks",
    ] == rows(page(whole(0, mean=0.25), whole(3, mean=1.0, error=None, valid=1), nothing))


def test_many_rounds_are_thinned_and_the_last_one_stays(page):
    found = rows(page(*(whole(version) for version in range(5 * MOST_ROUNDS + 1))))

    assert len(found) <= MOST_ROUNDS
    assert found[-1].startswith(f"  version {5 * MOST_ROUNDS} ")
    assert sorted(found, key=lambda one: int(one.split()[1])) == found


def test_a_run_without_held_out_tasks_has_no_such_rows(page):
    assert "Held-out score by version" not in page()
    assert [] == drawn(RunState(SMALL.shape))


def test_a_stream_has_a_line_for_each_round():
    stream = io.StringIO()
    progress = Progress(stream, RunState(SHAPE))
    for fact in (RunStarted(), scored(0), whole(0), whole(0), scored(1, version=3)):
        progress.record(1.0, fact)

    lines = [line for line in stream.getvalue().splitlines() if "held-out" in line]
    assert ["held-out 0.500 +- 0.125 at version 0"] == [line.split("  ")[-1] for line in lines]
    (found,) = drawn(progress.run)
    assert found.endswith("0.500 +- 0.125 at version 0; 1 since")
    assert len(found) <= WIDTH


def story_of(*facts):
    history = RunHistory(SHAPE)
    history.record_all([(0.0, RunStarted()), *facts])
    return history


def listed_at(history, at_s, **asked):
    return listed(history, ListingQuery(at_s=at_s, held_out=True, **asked))["rows"]


def test_an_evaluation_is_listed_from_when_it_is_asked_for():
    first, other = EvaluationId(0), EvaluationId(1)
    history = story_of(
        (1.0, EvaluationRequested(evaluation=first)),
        (2.0, EvaluationRequested(evaluation=other)),
        (5.0, EvaluationEnded(evaluation=first)),
        (6.0, scored(0, score=0.5)),
        (6.0, scored(0, score=0.5)),
    )
    (row,) = listed_at(history, 1.5)
    last, running = listed_at(history, 7.0)

    assert ("running", None, None) == (row["stage"], row["score"], row["outcome"])
    assert (1.0, row["engine"]) == (row["launched_s"], None)
    assert ("closed", 0.5, "valid", 4.0) == tuple(
        last[name] for name in ("stage", "score", "outcome", "ran_s")
    )
    assert ("eval-000000", "task-0", None, 0) == tuple(
        last[name] for name in ("execution", "task", "group", "evaluation")
    )
    assert ("eval-000001", None) == (running["execution"], running["task"])


def test_evaluations_are_ordered_and_chosen_as_others_are():
    requests = [(1.0, EvaluationRequested(evaluation=EvaluationId(one))) for one in range(3)]
    ends = [(3.0 + one, EvaluationEnded(evaluation=EvaluationId(one))) for one in range(3)]
    scores = [scored(0, score=0.9), scored(1, score=None), scored(2, score=0.1)]
    history = story_of(*requests, *ends, *((7.0, one) for one in scores))

    numbers = {
        order: [row["evaluation"] for row in listed_at(history, 8.0, order=order)]
        for order in ORDERS
    }
    assert [2, 0, 1] == numbers["score"]
    assert [2, 1, 0] == numbers["ran"] == numbers["ended"]
    assert [1] == [row["evaluation"] for row in listed_at(history, 8.0, outcome=Outcome.EXCLUDED)]
    assert [] == [
        row for row in listed(history, ListingQuery(at_s=8.0))["rows"] if row["evaluation"] == 0
    ]


def test_a_score_of_one_that_nobody_asked_for_is_listed_too():
    """As in a journal whose events begin later than its facts."""
    (row,) = listed_at(story_of((4.0, scored(7, version=3))), 4.0)

    assert (7, 3, "closed", None) == tuple(
        row[name] for name in ("evaluation", "version", "stage", "ran_s")
    )


def test_one_that_began_anew_is_listed_under_the_name_that_was_scored():
    """Its calls are those of the attempt that has the score."""
    again = replace(scored(7, version=3), execution="eval-000007.1")
    (row,) = listed_at(story_of((4.0, again)), 4.0)

    assert "eval-000007.1" == row["execution"]


def test_a_tracker_has_the_score_at_its_version():
    tracker = MemoryTracker()
    metrics = RunMetrics(tracker)
    metrics.record(1.0, whole(6))
    metrics.record(2.0, whole(9, mean=None, error=None, valid=0))

    assert [
        ("evaluation/score", 6, 0.5),
        ("evaluation/standard_error", 6, 0.125),
        ("evaluation/valid", 6, 0.75),
        ("evaluation/valid", 9, 0.0),
    ] == [(one.name, one.step, one.value) for one in tracker.logged]
