"""Asks an evaluator about one frozen state until it answers validly, within a budget."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

from gyre.rewards.assessment import EvaluatorAttempt, assessment, next_attempt
from gyre.rewards.score import reaches
from gyre.types.errors import EvaluatorError, SandboxError
from gyre.types.outcomes import Assessment, EvaluatorAnswer, Finding, State
from gyre.types.places import Evaluator
from gyre.types.tasks import EvaluationRule

Copies = Callable[[State], AbstractContextManager[tuple[str, str]]]
"""Makes a copy of the state that may be changed, and an empty folder beside it."""
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedAttempt:
    """An assessment, and whether its score reaches the least that a next step needs."""

    assessment: Assessment
    is_enough: bool


async def attempts(
    evaluator: Evaluator,
    evaluation: EvaluationRule,
    state: State,
    *,
    made: Sequence[Assessment],
    copies: Copies,
    left_s: Callable[[], float],
    least: Mapping[str, float] = NOTHING,
) -> AsyncIterator[AssessedAttempt]:
    """Assessments until one is valid or there is no further attempt; those made before count.

    `least`: what numbers of the answer must reach, by name.
    """
    known = list(made)
    while (attempt := next_attempt(evaluation, known, left_s=left_s())) is not None:
        await asyncio.sleep(attempt.pause_s)
        found = await _find(evaluator, state, copies, attempt)
        one = assessment(found, evaluation, state, evaluator=evaluator.name, attempt=attempt.number)
        known.append(one)
        is_enough = False
        if isinstance(found, EvaluatorAnswer) and one.score is not None:
            is_enough = reaches(found, evaluation, one.score, least)
        yield AssessedAttempt(assessment=one, is_enough=is_enough)


async def _find(
    evaluator: Evaluator, state: State, copies: Copies, attempt: EvaluatorAttempt
) -> Finding | EvaluatorError:
    try:
        with copies(state) as (workspace, scratch):
            return await evaluator.assess(workspace, scratch, within_s=attempt.within_s)
    except EvaluatorError as error:
        return error
    except SandboxError as error:
        return EvaluatorError(str(error), retryable=error.retryable)
