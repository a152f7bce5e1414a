"""One evaluator, one frozen state, as many copies as attempts."""

import asyncio
from contextlib import contextmanager

from gyre.rewards.retry import attempts
from gyre.types.errors import EvaluatorError, SandboxError
from gyre.types.outcomes import EvaluatorAnswer, NoAnswer, State, Status
from gyre.types.tasks import EvaluationRule

RULE = EvaluationRule(argv=("x",), attempts=4, retry_s=0.0, attempt_s=10.0)
STATE = State(folder="/f", reference="abc")


class Prepared:
    """An evaluator whose answers are known beforehand."""

    name = "prepared"

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = []

    async def assess(self, workspace, scratch, *, within_s):
        self.asked.append((workspace, within_s))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Copies:
    """Copies by number, of which some cannot be made."""

    def __init__(self, *broken):
        self._broken = broken
        self.made = 0
        self.open = 0

    @contextmanager
    def __call__(self, state):
        self.made += 1
        if self.made in self._broken:
            message = "no space"
            raise SandboxError(message)
        self.open += 1
        yield f"copy {self.made}", "scratch"
        self.open -= 1


def run(evaluator, copies, *, made=(), left_s=100.0):
    async def collect():
        found = attempts(evaluator, RULE, STATE, made=made, copies=copies, left_s=lambda: left_s)
        return [one.assessment async for one in found]

    return asyncio.run(collect())


def test_every_attempt_has_a_copy_of_its_own_until_one_is_valid():
    """SPEC 6.2."""
    copies = Copies()
    evaluator = Prepared(NoAnswer(reason="?"), EvaluatorError("broke"), EvaluatorAnswer(text="0"))
    found = run(evaluator, copies)

    assert [Status.UNRESOLVED, Status.FAILED, Status.VALID] == [one.status for one in found]
    assert [1, 2, 3] == [one.attempt for one in found]
    assert [("copy 1", 10.0), ("copy 2", 10.0), ("copy 3", 10.0)] == evaluator.asked
    assert 0.0 == found[-1].score


def test_a_copy_that_cannot_be_made_is_a_failed_attempt():
    found = run(Prepared(EvaluatorAnswer(text="1")), Copies(1))

    assert [(Status.FAILED, "no space"), (Status.VALID, None)] == [
        (one.status, one.reason) for one in found
    ]


def test_attempts_made_before_count():
    before = run(Prepared(*[NoAnswer(reason="?")] * 4), Copies())
    evaluator = Prepared(EvaluatorAnswer(text="1"))

    assert [] == run(evaluator, Copies(), made=before)
    assert [4] == [one.attempt for one in run(evaluator, Copies(), made=before[:3])]


def test_without_time_nobody_is_asked():
    evaluator = Prepared()

    assert [] == run(evaluator, Copies(), left_s=0.0)
    assert [] == evaluator.asked
