"""A launch that fails is tried again, and one that fails for good never started."""

import asyncio

import pytest

from gyre.rollout import supervisor
from gyre.rollout.deadlines import Deadlines
from gyre.rollout.execution import Execution, steps_of
from gyre.rollout.spec import ExecutionSpec, ProxyTotals
from gyre.rollout.supervisor import MOST_TRIES, Supervisor
from gyre.types.errors import SandboxError
from gyre.types.outcomes import Ending, Launched, Prepared
from gyre.types.tasks import Command, EvaluationRule, Task

PARTS = ["prepare", "start"]


class Clock:
    boot = "b"

    def now(self):
        return 1.0


class Failing:
    """A sandbox of which one part fails so many times."""

    levels = ()

    def __init__(self, part, times, *, retryable=True):
        self._part = part
        self._left = times
        self._retryable = retryable
        self.asked = []

    def _try(self, part):
        self.asked.append(part)
        if part == self._part and self._left:
            self._left -= 1
            message = "image pull: 404"
            raise SandboxError(message, retryable=self._retryable)

    async def prepare(self, workspace):
        self._try("prepare")

    async def start(self, command, *, output, most_bytes):
        self._try("start")

    async def wait(self):
        return 0

    async def kill(self):
        pass

    async def freeze(self):
        pass


class Recorder:
    """Moves an execution by facts, and keeps them."""

    def __init__(self, execution):
        self.execution = execution
        self.facts = []

    def record(self, fact):
        self.execution.apply(fact)
        self.facts.append(fact)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(supervisor, "RETRY_S", 0.0)


def terminated(folder, sandbox, *, cancelled=False):
    task = Task(id="t", instruction="i", files=None, evaluation=EvaluationRule(argv=("true",)))
    order = ExecutionSpec(
        execution="e", task=task, url="u", harness=("x",), variables={}, agent_s=5.0, overall_s=9.0
    )
    execution, clock = Execution("e", "t"), Clock()
    deadlines = Deadlines(
        order, execution, steps_of(task), clock=clock, calls=ProxyTotals(), spent_s=None
    )
    recorder = Recorder(execution)

    async def work():
        one = Supervisor(
            order,
            folder,
            execution,
            sandbox=sandbox,
            clock=clock,
            deadlines=deadlines,
            recorder=recorder,
        )
        if cancelled:
            one.cancelled.set()
        await one.advance("mark", lambda step: Command(argv=("x",)))

    asyncio.run(work())
    return execution, [type(fact) for fact in recorder.facts]


@pytest.mark.parametrize("part", PARTS)
def test_what_may_pass_is_tried_again_and_launched_once(part, tmp_path):
    execution, said = terminated(tmp_path, Failing(part, MOST_TRIES - 1))

    assert Ending.COMPLETED is execution.terminated.ending
    assert (1, 1) == (said.count(Prepared), said.count(Launched))


@pytest.mark.parametrize("part", PARTS)
def test_what_does_not_pass_never_started(part, tmp_path):
    """SPEC 6.4."""
    sandbox = Failing(part, MOST_TRIES)
    execution, _ = terminated(tmp_path, sandbox)

    assert MOST_TRIES == sandbox.asked.count(part)
    assert (Ending.NEVER_STARTED, "image pull: 404") == (
        execution.terminated.ending,
        execution.terminated.reason,
    )


@pytest.mark.parametrize("part", PARTS)
def test_what_cannot_pass_is_tried_once(part, tmp_path):
    sandbox = Failing(part, 1, retryable=False)
    execution, _ = terminated(tmp_path, sandbox)

    assert 1 == sandbox.asked.count(part)
    assert Ending.NEVER_STARTED is execution.terminated.ending


def test_what_nobody_wants_any_more_is_not_tried_again(tmp_path):
    sandbox = Failing("prepare", 1)
    execution, _ = terminated(tmp_path, sandbox, cancelled=True)

    assert ["prepare"] == sandbox.asked
    assert Ending.CANCELLED is execution.terminated.ending
