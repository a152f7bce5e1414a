"""What steps come to, and when the next one may begin."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.rollout.execution import steps_of, why_over, worth
from gyre.types.outcomes import Ending, State, StepEnded
from gyre.types.tasks import EvaluationRule, Task, TaskStep

RULE = EvaluationRule(argv=("true",))
TASK = Task(id="t", instruction="go", files=None, evaluation=RULE)
ENDED = StepEnded(
    step=0,
    ending=Ending.CRASHED,
    reason="exit status 3",
    elapsed_s=1.0,
    state=State(folder="f", reference="r"),
)


def stepped(number, **changed):
    steps = tuple(
        TaskStep(name=f"s{index}", instruction="go", files=None, evaluation=RULE)
        for index in range(number)
    )
    return replace(TASK, steps=steps, **changed)


def test_a_task_without_steps_is_one():
    (only,) = steps_of(TASK)

    assert (TASK.instruction, TASK.evaluation) == (only.instruction, only.evaluation)
    assert 0.3 == worth(TASK, {0: 0.3})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(1, 6))
def test_reaching_one_more_step_never_costs_anything(scores, number):
    """A mean of what was reached alone would pay for giving up."""
    task = stepped(max(number, len(scores)))
    known = dict(enumerate(scores))
    less = dict(list(known.items())[:-1])

    assert worth(task, less) <= worth(task, known) <= 1.0


@pytest.mark.parametrize(
    ("how", "scores", "expected"),
    [("mean", [1.0], 0.5), ("mean", [1.0, 0.5], 0.75), ("final", [1.0], 0.0), ("final", [0, 1], 1)],
)
def test_steps_come_to_their_mean_or_to_the_last(how, scores, expected):
    assert expected == worth(stepped(2, steps_reward=how), dict(enumerate(scores)))


GOES_ON = {"is_scored": True, "is_enough": True, "is_cancelled": False, "left_s": 1.0}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, None),
        ({"is_cancelled": True}, (Ending.CANCELLED, "cancelled behind step s")),
        ({"is_scored": False}, (Ending.CRASHED, "exit status 3; step s has no score")),
        (
            {"is_enough": False},
            (Ending.CRASHED, "exit status 3; step s did not reach what the next waits for"),
        ),
        ({"left_s": 0.0}, (Ending.TIMED_OUT, "the agent's time was over behind step s")),
    ],
)
def test_the_next_step_begins_behind_a_score_that_is_enough(changed, expected):
    assert expected == why_over(ENDED, name="s", **(GOES_ON | changed))
