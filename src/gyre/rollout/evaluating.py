"""The evaluator that an order asks for: its command in a sandbox, or its judge with the key."""

import os
from pathlib import Path

from gyre.rewards.command import CommandEvaluator
from gyre.rewards.judge import Judge
from gyre.rollout.spec import ExecutionSpec
from gyre.types.errors import EvaluatorError
from gyre.types.outcomes import Finding
from gyre.types.places import Evaluator, Sandbox


class UnavailableEvaluator:
    """Stands where no evaluator can be had, and says why."""

    name = "nobody"

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def assess(self, workspace: str, scratch: str, *, within_s: float) -> Finding:
        raise EvaluatorError(self._reason, retryable=False)


def evaluator_for(order: ExecutionSpec, sandbox: Sandbox, folder: Path) -> Evaluator:
    """Whoever judges what the execution leaves."""
    if order.task.evaluation.rubric is not None:
        return _judge(order, folder)
    return CommandEvaluator(
        order.task.evaluation,
        sandbox,
        variables=order.task.variables,
        folder=folder,
        output_bytes=order.output_bytes,
    )


def _judge(order: ExecutionSpec, folder: Path) -> Evaluator:
    settings = order.judge
    if settings is None:
        return UnavailableEvaluator(
            f"task {order.task.id} has a rubric, and nobody is there to judge by it"
        )
    key = None if settings.key_env is None else os.environ.get(settings.key_env)
    if settings.key_env is not None and not key:
        return UnavailableEvaluator(
            f"evaluate.judge.key_env: expected a key in {settings.key_env}, found none"
        )
    try:
        return Judge(order.task, order.task.evaluation, settings, key=key, folder=folder)
    except EvaluatorError as error:
        return UnavailableEvaluator(str(error))
