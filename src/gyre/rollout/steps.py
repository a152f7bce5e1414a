"""The steps of a task: which are there, when the next one may begin, and what they come to.

Rule 1: a step begins when the one before it was scored and reached what it must.
Rule 2: a step that was not reached counts as the lowest score, because a mean of those that were
would pay for not reaching the others.
"""

from collections.abc import Mapping
from statistics import fmean

from gyre.types.outcomes import Ending, StepEnded
from gyre.types.tasks import Task, TaskStep


def steps_of(task: Task) -> tuple[TaskStep, ...]:
    """A task without steps is one step."""
    if task.steps:
        return task.steps
    return (
        TaskStep(
            name=task.id,
            instruction=task.instruction,
            files=None,
            evaluation=task.evaluation,
        ),
    )


def worth(task: Task, scores: Mapping[int, float]) -> float:
    """The reward that the scores of its steps come to, by their numbers."""
    all_scores = [
        scores.get(number, step.evaluation.lowest) for number, step in enumerate(steps_of(task))
    ]
    return all_scores[-1] if task.steps_reward == "final" else fmean(all_scores)


def why_over(
    ended: StepEnded,
    *,
    name: str,
    is_scored: bool,
    is_enough: bool,
    is_cancelled: bool,
    left_s: float,
) -> tuple[Ending, str] | None:
    """How an execution ends behind a step; None: the next one begins."""
    if is_cancelled:
        return Ending.CANCELLED, f"cancelled behind step {name}"
    if not is_scored:
        return ended.ending, f"{ended.reason}; step {name} has no score"
    if not is_enough:
        return ended.ending, f"{ended.reason}; step {name} did not reach what the next waits for"
    if left_s <= 0:
        return Ending.TIMED_OUT, f"the agent's time was over behind step {name}"
    return None
