"""How long an execution has, by its run and by its task."""

import pytest

from gyre.config.run_config import DeadlinesConfig
from gyre.controller.process_specs import deadlines_for
from gyre.types.tasks import EvaluationRule, Task

ALLOWED = DeadlinesConfig(agent_s=100.0, overall_s=200.0)


@pytest.mark.parametrize(
    ("agent_s", "overall_s", "wanted"),
    [
        (None, None, (100.0, 200.0)),
        (50.0, None, (50.0, 200.0)),
        (500.0, 500.0, (100.0, 200.0)),
        (None, 150.0, (100.0, 150.0)),
        (None, 90.0, (80.0, 90.0)),
        (None, 12.0, (6.0, 12.0)),
    ],
)
def test_a_task_may_ask_for_less_and_leaves_time_to_be_judged(agent_s, overall_s, wanted):
    task = Task(
        id="a",
        instruction="go",
        files=None,
        evaluation=EvaluationRule(argv=("true",), attempt_s=10.0),
        agent_s=agent_s,
        overall_s=overall_s,
    )

    assert wanted == deadlines_for(ALLOWED, task)
