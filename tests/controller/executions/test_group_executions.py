"""Executions that nothing can be learnt from: said at once, recorded, and closed as such."""

import asyncio

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop

from gyre.batching.task_sampler import TaskSampler
from gyre.controller.executions.group_executions import MOST_ALARMS, GroupExecutions, last_line
from gyre.controller.executions.supervisors import SupervisedExecution
from gyre.rollout.spec import ProxyTotals
from gyre.scheduler.messages import AdmitGroup, ExecutionClosed, LaunchExecution
from gyre.types.outcomes import Closed, Ending, Outcome, Terminated
from gyre.types.run_events import ExecutionUnusable, RewardGiven
from gyre.types.tasks import EvaluationRule, Task

SIZE = MOST_ALARMS + 2
VALID = Closed(outcome=Outcome.VALID, score=0.0, reason=None)
EXCLUDED = Closed(outcome=Outcome.EXCLUDED, score=None, reason="expected a number, found 'hello'")
SURPLUS = Closed(outcome=Outcome.SURPLUS, score=None, reason="the group has enough rewards")


class Tasks:
    def __len__(self):
        return 1

    def get(self, index):
        rule = EvaluationRule(argv=("true",))
        return Task(id="sort", instruction="", files=None, evaluation=rule)


class Supervisors:
    """Whoever is launched is supervised, and ends when the test says so."""

    def __init__(self):
        self.launched = []

    def launch(self, name, task, folder, listener):
        self.launched.append(SupervisedExecution(name, folder, task, listener))


def ended(ending, *, elapsed_s, reason="exit status 1"):
    return Terminated(ending=ending, reason=reason, elapsed_s=elapsed_s, state=None)


def closed(folder, *ends, printed=b""):
    """What is recorded when members of one group end and close like that."""

    async def live():
        loop, supervisors = FakeRunLoop(), Supervisors()
        sampler = TaskSampler(1, seed=0)
        group = GroupExecutions(loop, folder, Tasks(), sampler, supervisors)
        group.admit(AdmitGroup(group=0, version=0, size=SIZE))
        for member, (fact, calls, over) in enumerate(ends):
            group.launch(LaunchExecution(group=0, member=member, engine=0))
            one = supervisors.launched[-1]
            one.folder.mkdir(parents=True)
            (one.folder / "output.txt").write_bytes(printed)
            one.terminated, one.proxy_totals = fact, ProxyTotals(committed_calls=calls)
            await group.terminated(one, fact)
            await group.closed(one, over)
        return loop

    return asyncio.run(live())


def of(kind, loop):
    return [one for one in loop.recorded if isinstance(one, kind)]


CRASHED = ended(Ending.CRASHED, elapsed_s=0.2)
UNUSABLE = [
    (CRASHED, 0, VALID, "crashed within 5 s: exit status 1"),
    (CRASHED, 7, VALID, "crashed within 5 s: exit status 1"),
    (ended(Ending.COMPLETED, elapsed_s=90.0, reason="exit status 0"), 0, VALID,
     "never called the model: completed, exit status 0"),
    (ended(Ending.TIMED_OUT, elapsed_s=90.0, reason="no time left"), 0, EXCLUDED,
     "never called the model: timed-out, no time left"),
    (ended(Ending.NEVER_STARTED, elapsed_s=None, reason="no such image"), None, EXCLUDED,
     "never started: no such image"),
]  # fmt: skip
USABLE = [
    (ended(Ending.CRASHED, elapsed_s=60.0), 7, VALID),
    (ended(Ending.CRASHED, elapsed_s=None), 7, EXCLUDED),
    (ended(Ending.COMPLETED, elapsed_s=0.2), 1, VALID),
    (ended(Ending.CANCELLED, elapsed_s=0.2), 0, EXCLUDED),
    (CRASHED, 0, SURPLUS),
]


@pytest.mark.parametrize(("fact", "calls", "over", "reason"), UNUSABLE)
def test_an_execution_that_did_not_get_to_its_task_is_said_at_once(
    tmp_path, fact, calls, over, reason
):
    """SPEC 11.3: also where its reward is valid."""
    loop = closed(tmp_path, (fact, calls, over), printed=b"Traceback:\nno \x1b[31mmodule\n\n")
    (found,), (close,), (given,) = (
        of(kind, loop) for kind in (ExecutionUnusable, ExecutionClosed, RewardGiven)
    )
    output = "no \\x1b[31mmodule"

    assert ("sort", reason, output) == (found.task, found.reason, found.output)
    assert [f"task sort: execution {found.execution} {reason}; its last line: {output}"] == (
        loop.alarms
    )
    assert (over.outcome, True) == (close.outcome, close.is_unusable)
    assert ("sort", over.reason) == (given.task, given.reason)


@pytest.mark.parametrize(("fact", "calls", "over"), USABLE)
def test_an_execution_that_did_or_was_cancelled_is_not(tmp_path, fact, calls, over):
    loop = closed(tmp_path, (fact, calls, over))

    assert [] == [*of(ExecutionUnusable, loop), *loop.alarms]
    assert [False] == [one.is_unusable for one in of(ExecutionClosed, loop)]


def test_the_first_ones_are_said_and_all_are_recorded(tmp_path):
    loop = closed(tmp_path, *[(CRASHED, 0, VALID)] * SIZE)

    assert SIZE == len(of(ExecutionUnusable, loop))
    assert MOST_ALARMS == len(loop.alarms)
    assert all(one.endswith("; it printed nothing") for one in loop.alarms)


def test_the_last_line_is_that_of_the_last_step_that_printed_one(tmp_path):
    for name, text in (("steps/00", "first\n"), ("steps/01", "second\nthird"), ("steps/02", "\n")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "output.txt").write_text(text)

    assert "third" == last_line(tmp_path)
    assert last_line(tmp_path / "nowhere") is None
