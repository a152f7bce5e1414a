"""What every evaluator promises behind the Evaluator port; each promise is one function."""

import asyncio
from pathlib import Path
from typing import Literal, Protocol

import pytest
from tests.waiting import PATIENCE_S, until

from gyre.types.errors import EvaluatorError
from gyre.types.outcomes import EvaluatorAnswer, NoAnswer
from gyre.types.places import Evaluator

Behaviour = Literal["says", "silent", "breaks", "hangs", "impossible"]
"""Says the contents of the file `work`; answers nothing; breaks; goes on for ever; cannot start."""


class Subject(Protocol):
    """Evaluators under test, and the folders they get."""

    workspace: Path
    scratch: Path

    def make(self, behaviour: Behaviour) -> Evaluator: ...

    def num_alive(self) -> int:
        """Processes of its evaluators that run."""
        ...

    def num_left(self) -> int:
        """The same, once whoever is told of an end from elsewhere has been told."""
        ...


async def assess(subject: Subject, behaviour: Behaviour, within_s: float = PATIENCE_S):
    evaluator = subject.make(behaviour)
    return await evaluator.assess(str(subject.workspace), str(subject.scratch), within_s=within_s)


async def it_has_a_name(subject: Subject) -> None:
    assert subject.make("says").name


async def what_it_says_is_passed_on(subject: Subject) -> None:
    (subject.workspace / "work").write_text("0.25")

    assert EvaluatorAnswer(text="0.25") == await assess(subject, "says")


async def garbage_is_passed_on_for_others_to_judge(subject: Subject) -> None:
    """FAULTS 18."""
    (subject.workspace / "work").write_text("nan and more")

    assert EvaluatorAnswer(text="nan and more") == await assess(subject, "says")


async def no_answer_is_silence(subject: Subject) -> None:
    """SPEC 6.3: neither a zero nor an error."""
    assert isinstance(await assess(subject, "silent"), NoAnswer)


async def an_empty_answer_is_silence(subject: Subject) -> None:
    (subject.workspace / "work").write_text("")

    assert isinstance(await assess(subject, "says"), NoAnswer)


async def breaking_may_be_tried_again(subject: Subject) -> None:
    with pytest.raises(EvaluatorError) as error:
        await assess(subject, "breaks")

    assert error.value.retryable


async def what_cannot_start_is_not_tried_again(subject: Subject) -> None:
    with pytest.raises(EvaluatorError) as error:
        await assess(subject, "impossible")

    assert not error.value.retryable


async def it_takes_no_longer_than_it_is_given_and_nothing_goes_on(subject: Subject) -> None:
    """FAULTS 17: one that hangs would otherwise never be over."""
    found = await assess(subject, "hangs", within_s=0.2)

    assert isinstance(found, NoAnswer)
    assert 0 == subject.num_left()


async def nothing_goes_on_when_it_is_cancelled(subject: Subject) -> None:
    asked = asyncio.create_task(assess(subject, "hangs"))
    await until(subject.num_alive, "an evaluator that runs")
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

    assert 0 == subject.num_left()


EVERY_EVALUATOR = [
    it_has_a_name,
    what_it_says_is_passed_on,
    garbage_is_passed_on_for_others_to_judge,
    no_answer_is_silence,
    an_empty_answer_is_silence,
    breaking_may_be_tried_again,
    what_cannot_start_is_not_tried_again,
    it_takes_no_longer_than_it_is_given_and_nothing_goes_on,
    nothing_goes_on_when_it_is_cancelled,
]
