"""An evaluator is asked about one frozen state until it says something, within a budget."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager

from gyre.evaluate.assess import Attempt, assessment, next_attempt
from gyre.words.errors import EvaluatorError, SandboxError
from gyre.words.outcomes import Assessment, Finding, State
from gyre.words.places import Evaluator
from gyre.words.tasks import Evaluation

Copies = Callable[[State], AbstractContextManager[tuple[str, str]]]
"""Makes a copy of the state that may be changed, and an empty folder beside it."""


async def attempts(
    evaluator: Evaluator,
    evaluation: Evaluation,
    state: State,
    *,
    made: Sequence[Assessment],
    copies: Copies,
    left_s: Callable[[], float],
) -> AsyncIterator[Assessment]:
    """Assessments until one is valid or there is no further attempt; those made before count."""
    known = list(made)
    while (attempt := next_attempt(evaluation, known, left_s=left_s())) is not None:
        await asyncio.sleep(attempt.pause_s)
        found = await _find(evaluator, state, copies, attempt)
        one = assessment(found, evaluation, state, evaluator=evaluator.name, attempt=attempt.number)
        known.append(one)
        yield one


async def _find(
    evaluator: Evaluator, state: State, copies: Copies, attempt: Attempt
) -> Finding | EvaluatorError:
    try:
        with copies(state) as (workspace, scratch):
            return await evaluator.assess(workspace, scratch, within_s=attempt.within_s)
    except EvaluatorError as error:
        return error
    except SandboxError as error:
        return EvaluatorError(str(error), retryable=error.retryable)
