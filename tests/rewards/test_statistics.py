"""Means and their spread, against plain arithmetic."""

from math import sqrt

import pytest

from gyre.rewards.statistics import ScoredExecution, score_statistics
from gyre.types.outcomes import Outcome


def scored(task, *scores):
    return [
        ScoredExecution(
            task=task,
            outcome=Outcome.EXCLUDED if score is None else Outcome.VALID,
            score=score,
            highest=1.0,
        )
        for score in scores
    ]


def test_every_task_weighs_the_same_and_the_spread_is_that_of_tasks():
    found = score_statistics(
        [*scored("a", 1.0, 1.0, 1.0, 0.0), *scored("b", 0.5), *scored("c", 0.0)]
    )
    means = [0.75, 0.5, 0.0]
    middle = sum(means) / 3
    deviation = sqrt(sum((one - middle) ** 2 for one in means) / 2)

    assert pytest.approx(middle) == found.score.mean
    assert pytest.approx(deviation / sqrt(3)) == found.score.standard_error
    assert pytest.approx(0.25) == found.passed.mean
    assert pytest.approx(1 / 3) == found.any_passed
    assert [("a", 4, 3), ("b", 1, 0), ("c", 1, 0)] == [
        (one.task, one.num_executions, one.num_passed) for one in found.tasks
    ]


def test_what_has_no_valid_score_is_counted_and_in_no_mean():
    """SPEC 6.3: and a valid zero stays."""
    found = score_statistics(scored("a", 1.0, None, 0.0, None))

    assert (4, 2) == (found.num_executions, found.num_valid)
    assert (0.5, 2) == (found.score.mean, found.tasks[0].score.num)


def test_a_task_without_a_valid_score_weighs_nothing_and_is_named():
    found = score_statistics([*scored("a", 0.5, 0.5), *scored("b", None, None)])

    assert (0.5, 2, None) == (found.score.mean, found.score.num, found.tasks[1].score.mean)


def test_of_one_task_the_executions_spread():
    found = score_statistics(scored("a", 0.0, 1.0))

    assert (0.5, 0.5) == (found.score.mean, found.score.standard_error)


def test_a_placeholder_is_a_zero_and_is_counted():
    """SPEC 6.4."""
    zero = ScoredExecution(task="a", outcome=Outcome.PLACEHOLDER, score=0.0, highest=1.0)
    found = score_statistics([zero, *scored("a", 1.0)])

    assert (0.5, 1, 2) == (found.score.mean, found.num_placeholders, found.num_valid)


@pytest.mark.parametrize("scores", [[], [None]])
def test_without_a_score_there_is_no_mean(scores):
    found = score_statistics(scored("a", *scores))

    assert (None, None, None) == (found.score.mean, found.passed.mean, found.any_passed)


def test_one_score_alone_has_no_error():
    found = score_statistics(scored("a", 1.0))

    assert (1.0, None) == (found.passed.mean, found.passed.standard_error)
