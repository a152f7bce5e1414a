"""Held-out evaluation beside a real scheduler; the proxy and the supervisors are stand-ins."""

import asyncio
import json
import signal
from collections import Counter, deque
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.controller.support.supervised import order
from tests.waiting import PATIENCE_S, until

from gyre.cluster.fork_client import ForkClient
from gyre.cluster.process import LocalNode
from gyre.controller.executions.held_out_eval import HeldOutEval, name_of
from gyre.controller.executions.supervisors import MOST_REVIVALS, Supervisors
from gyre.proxy.client import SealedExecution
from gyre.rollout.facts import FactEntry, FactsFile
from gyre.rollout.spec import ExecutionSpec, read_order, read_proxy_totals, write_order
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    EvaluationEnded,
    EvaluationMove,
    EvaluationRequested,
    LaunchEvaluation,
    Published,
    RunStarted,
    TimerFired,
)
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.storage.call_log import CallLog, path_of
from gyre.testing.processes import FakeForker
from gyre.trajectory.loading import versions_of
from gyre.types.call_records import CallClosed
from gyre.types.conversation import Message
from gyre.types.errors import EngineError
from gyre.types.ids import EngineId
from gyre.types.outcomes import Closed, Ending, Launched, Outcome, Prepared, Terminated
from gyre.types.run_events import EvaluationRound, EvaluationScored
from gyre.types.sampling import SamplingParams, Span
from gyre.types.tasks import EvaluationRule, Task

SHAPE = SchedulerConfig(
    groups_per_batch=2,
    executions_per_group=2,
    num_cells=1,
    cell_capacity=8,
    standalone_capacities=(8,),
    steps=6,
    evaluation_slots=2,
)
ENDED = Terminated(ending=Ending.COMPLETED, reason="exit status 0", elapsed_s=1.0, state=None)
CANCELLED = Terminated(ending=Ending.CANCELLED, reason="told", elapsed_s=1.0, state=None)
VALID = Closed(outcome=Outcome.VALID, score=1.0, reason=None)
EXCLUDED = Closed(outcome=Outcome.EXCLUDED, score=None, reason="no score")


class Tasks:
    """So many of them."""

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def get(self, index):
        judge = EvaluationRule(argv=("true",))
        return Task(id=f"held-{index}", instruction="do", files=None, evaluation=judge)


class Proxy:
    """Keys and what became of them."""

    def __init__(self):
        self.opened, self.sealed, self.refused, self.waits = [], [], set(), {}

    async def open(self, execution):
        if execution in self.refused:
            raise EngineError("proxy: 400", retryable=False)
        self.opened.append(execution)
        return f"key-{execution}"

    async def seal(self, execution):
        if execution not in self.opened:
            raise EngineError("proxy: 404", retryable=False)
        self.sealed.append(execution)
        return SealedExecution(committed_calls=3, held_s=0.5)

    async def held(self):
        return dict(self.waits)

    def url_of(self, execution):
        return f"http://proxy/exec/{execution}"


class Forker(FakeForker):
    """Forks supervisors that end by any signal."""

    def __init__(self):
        super().__init__(LocalNode(), ends_by=signal.Signals)

    @property
    def told(self):
        """By name, the order and the secrets of each supervisor."""
        return {
            one.name: (read_order(Path(*one.arguments)), json.loads(one.secret))
            for one in self.requests
        }

    @property
    def last(self):
        """By name, the last of each."""
        return {one.name: one for one in self.processes}


class Scene(FakeRunLoop):
    """A run that only evaluates: facts are decided on one after the other, as a host does it."""

    def __init__(self, folder, *, tasks=3, every=1, fork_client=None):
        super().__init__()
        self.folder = folder
        self.proxy = Proxy()
        self.scheduler = Scheduler(SHAPE)
        self.facts, self.launched = [], []
        self.forker = Forker()
        self.order = None
        self._inbox = deque()
        self._spawned = set()
        self.evaluations = HeldOutEval(
            self,
            folder,
            Tasks(tasks),
            Supervisors(
                self.proxy,
                fork_client or self.forker,
                order_of=self._order_of,
                facts_token="token",
                spawn=self.spawn,
            ),
            every=every,
            last=SHAPE.steps,
        )

    def record(self, fact):
        self._inbox.append(fact)

    def spawn(self, work):
        task = asyncio.ensure_future(work)
        self._spawned.add(task)
        return task

    def abandon(self):
        for task in self._spawned:
            task.cancel()

    def _order_of(self, name, task, url):
        if self.order is not None:
            return replace(self.order, execution=name)
        return ExecutionSpec(
            execution=name,
            task=task,
            url=url,
            harness=("agent",),
            variables={},
            agent_s=60.0,
            overall_s=120.0,
        )

    async def settle(self):
        while self._inbox or self._spawned:
            self.take_all()
            spawned, self._spawned = self._spawned, set()
            await asyncio.gather(*spawned)

    def take_all(self):
        while self._inbox:
            self._take(self._inbox.popleft())

    async def settle_but_deciding(self):
        while self._inbox or self._spawned:
            self.take_all_but_deciding()
            spawned, self._spawned = self._spawned, set()
            await asyncio.gather(*spawned)

    def take_all_but_deciding(self):
        """Of a run whose scheduler is of no interest."""
        self.facts += self._inbox
        self._inbox.clear()

    def _take(self, fact):
        self.facts.append(fact)
        commands = self.scheduler.handle(fact, 0.0) if isinstance(fact, EVENTS) else []
        for command in commands:
            if isinstance(command, LaunchEvaluation):
                self.launched.append(command.evaluation)
                self.evaluations.launch(command)
        self.evaluations.noticed(0.0, fact)

    async def begin(self):
        self.record(RunStarted())
        await self.settle()

    async def publish(self, version):
        """Only this room hears of it: a scheduler would want the training that went before."""
        self.evaluations.noticed(0.0, Published(version=version, silent=()))
        await self.settle()

    async def close(self, number, closed=VALID):
        """Both facts are posted, each twice."""
        name = name_of(number)
        for at, fact in enumerate([ENDED, ENDED, closed, closed]):
            await self.evaluations.supervisors.receive(
                name, FactEntry(sequence=at // 2, at=0.0, fact=fact)
            )
        await self.settle()

    def of(self, kind):
        return [one for one in self.facts if isinstance(one, kind)]


@pytest.fixture
def scene(tmp_path):
    """Makes a scene and lets a scenario play in it."""

    def play(scenario, **changes):
        async def work():
            made = Scene(tmp_path / "run", **changes)
            await asyncio.wait_for(scenario(made), PATIENCE_S)
            return made

        return asyncio.run(work())

    return play


def test_all_tasks_are_asked_for_before_the_first_step_and_launched_by_slots(scene):
    found = scene(lambda one: one.begin())

    assert [0, 1, 2] == [one.evaluation for one in found.of(EvaluationRequested)]
    assert [0, 1] == found.launched
    assert ["eval-000000", "eval-000001"] == sorted(found.forker.told)
    order, told = found.forker.told["eval-000001"]
    assert ("held-1", "http://proxy/exec/eval-000001") == (order.task.id, order.url)
    assert {"key": "key-eval-000001", "token": "token"} == told


def test_a_slot_is_free_when_the_harness_has_ended(scene):
    async def scenario(one):
        await one.begin()
        entry = FactEntry(sequence=0, at=0.0, fact=ENDED)
        await one.evaluations.supervisors.receive(name_of(1), entry)
        assert ["eval-000001"] == one.proxy.sealed
        await one.settle()

    found = scene(scenario)

    assert [EvaluationEnded(evaluation=1)] == found.of(EvaluationEnded)
    assert [0, 1, 2] == found.launched
    assert [] == found.of(EvaluationScored)
    assert {"eval-000000", "eval-000002"} == set(found.evaluations.assignments)
    told = read_proxy_totals(found.folder / "attempts" / "eval-000001")
    assert (0.5, 3) == (told.held_s, told.committed_calls)


def test_a_round_has_the_mean_of_the_valid_and_its_standard_error(scene):
    async def scenario(one):
        await one.begin()
        half = Closed(outcome=Outcome.VALID, score=0.5, reason=None)
        placeholder = Closed(outcome=Outcome.PLACEHOLDER, score=None, reason="no image")
        for number, closed in enumerate([VALID, EXCLUDED, half, placeholder]):
            await one.close(number, closed)

    found = scene(scenario, tasks=4)

    assert [1.0, None, 0.5, 0.0] == [one.score for one in found.of(EvaluationScored)]
    assert ["held-0", "held-1", "held-2", "held-3"] == [
        one.task for one in found.of(EvaluationScored)
    ]
    (whole,) = found.of(EvaluationRound)
    assert (0, 4, 3) == (whole.version, whole.num_tasks, whole.num_valid)
    assert 0.5 == pytest.approx(whole.mean)
    assert 0.5 / sqrt(3) == pytest.approx(whole.standard_error)
    assert 0 == found.scheduler.num_evaluations
    assert {} == found.evaluations.assignments


@pytest.mark.parametrize(
    ("closed", "mean"), [(EXCLUDED, None), (VALID, 1.0)], ids=["none valid", "one valid"]
)
def test_a_round_without_a_spread_has_no_standard_error(scene, closed, mean):
    async def scenario(one):
        await one.begin()
        await one.close(0, closed)

    (whole,) = scene(scenario, tasks=1).of(EvaluationRound)

    assert (mean, None) == (whole.mean, whole.standard_error)


def test_rounds_come_every_so_many_publications_with_new_numbers(scene):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        for version in (1, 2, 2, 3, 4, 5, 6):
            await one.publish(version)
            for number in sorted(one.evaluations.assignments):
                await one.close(int(number.removeprefix("eval-")))

    found = scene(scenario, tasks=1, every=2)

    # The version that the run ends with comes too late.
    assert [0, 2, 4] == [one.version for one in found.of(EvaluationRound)]
    assert [0, 1, 2] == [one.evaluation for one in found.of(EvaluationScored)]


def test_rounds_do_not_overlap_and_several_that_are_due_are_one(scene):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        for version in (1, 2, 3):
            await one.publish(version)
        assert [0, 1] == one.launched
        await one.close(1)

    found = scene(scenario, tasks=2)

    assert [0] == [one.version for one in found.of(EvaluationRound)]
    assert [0, 1, 2, 3] == [one.evaluation for one in found.of(EvaluationRequested)]
    assert [0, 1, 2, 3] == found.launched


def test_seats_follow_the_scheduler_s_moves_while_an_evaluation_runs(scene):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        one.evaluations.move(
            [
                EvaluationMove(evaluation=1, engine=EngineId(7)),
                EvaluationMove(evaluation=0, engine=EngineId(7)),
            ]
        )

    found = scene(scenario, tasks=2)

    assert {"eval-000001": 7} == found.evaluations.assignments


def test_facts_that_were_not_posted_are_read_from_the_disk(scene):
    async def scenario(one):
        await one.begin()
        file = FactsFile(one.folder / "attempts" / "eval-000000")
        for fact in (Prepared(mark="m"), Launched(monotonic_s=0.0, boot="b"), ENDED):
            file.append(fact, at=0.0)
        entry = file.append(VALID, at=0.0)
        file.close()
        await one.evaluations.supervisors.receive(name_of(0), entry)
        await one.settle()

    found = scene(scenario, tasks=1)

    assert [1.0] == [one.score for one in found.of(EvaluationScored)]
    assert [EvaluationEnded(evaluation=0)] == found.of(EvaluationEnded)


def test_facts_of_other_executions_are_passed_over(scene):
    async def scenario(one):
        await one.begin()
        entry = FactEntry(sequence=0, at=0.0, fact=ENDED)
        await one.evaluations.supervisors.receive("g00000-00", entry)

    assert [] == scene(scenario).of(EvaluationEnded)


def test_an_evaluation_that_the_proxy_refuses_is_a_placeholder(scene):
    async def scenario(one):
        one.proxy.refused = {"eval-000000"}
        await one.begin()

    found = scene(scenario, tasks=1)

    assert [("placeholder", 0.0)] == [
        (one.outcome, one.score) for one in found.of(EvaluationScored)
    ]
    assert [0.0] == [one.mean for one in found.of(EvaluationRound)]
    assert 0 == found.scheduler.num_evaluations


def test_an_evaluation_whose_nursery_died_is_started_by_the_next(scene):
    """That is nothing it could be scored for."""

    async def scenario(one):
        one.forker.is_closed = True
        await one.begin()
        assert {} == one.forker.last
        one.forker.is_closed = False
        await one.evaluations.supervisors.look()
        await one.close(0)

    found = scene(scenario, tasks=1)

    assert "key-eval-000000" == found.forker.told["eval-000000"][1]["key"]
    assert [("valid", 1.0)] == [(one.outcome, one.score) for one in found.of(EvaluationScored)]


def test_a_supervisor_that_dies_is_followed_by_another(scene):
    async def scenario(one):
        await one.begin()
        one.forker.last["eval-000000"].exit()
        await one.evaluations.supervisors.look()
        await one.evaluations.supervisors.look()
        await one.close(0)

    found = scene(scenario, tasks=1)

    assert {"eval-000000": 2} == Counter(one.name for one in found.forker.requests)
    assert [("valid", 1.0)] == [(one.outcome, one.score) for one in found.of(EvaluationScored)]


@pytest.mark.parametrize("is_closed", [False, True], ids=["dies", "cannot be born"])
def test_a_supervisor_that_is_lost_again_and_again_is_given_up(scene, is_closed):
    async def scenario(one):
        await one.begin()
        one.forker.is_closed = is_closed
        for _ in range(MOST_REVIVALS + 1):
            assert [] == one.of(EvaluationScored)
            one.forker.last["eval-000000"].exit()
            await one.evaluations.supervisors.look()
        await one.settle()

    found = scene(scenario, tasks=1)

    assert [("excluded", None)] == [(one.outcome, one.score) for one in found.of(EvaluationScored)]
    assert 0 == found.scheduler.num_evaluations


def test_deadlines_are_told_what_calls_waited(scene):
    async def scenario(one):
        await one.begin()
        one.proxy.waits = {"eval-000000": 30.0, "g00000-00": 5.0}
        await one.evaluations.supervisors.look()

    found = scene(scenario, tasks=1)

    assert 30.0 == read_proxy_totals(found.folder / "attempts" / "eval-000000").held_s


@pytest.mark.parametrize(("for_good", "told"), [(True, signal.SIGUSR1), (False, signal.SIGUSR2)])
def test_what_is_unfinished_is_told_whether_the_run_is_over_or_only_stopped(scene, for_good, told):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        await one.evaluations.supervisors.end(for_good=for_good)

    found = scene(scenario)

    assert {
        "eval-000000": [],
        "eval-000001": [told],
        "eval-000002": [told],
    } == {name: child.signals for name, child in found.forker.last.items()}


def test_an_evaluation_that_is_about_to_be_started_is_not(scene):
    async def scenario(one):
        one.record(RunStarted())
        one.take_all()
        await one.evaluations.supervisors.end()
        await one.settle()

    found = scene(scenario, tasks=1)

    assert {} == found.forker.last
    assert [("surplus", None)] == [(one.outcome, one.score) for one in found.of(EvaluationScored)]


def test_an_evaluation_that_is_just_being_started_is_cancelled_too(scene):
    """Whoever waits for its start is gone by then, as at the end of a run."""

    async def scenario(one):
        one.forker.gate.clear()
        one.record(RunStarted())
        one.take_all()
        await one.forker.asked.wait()
        one.abandon()
        ending = asyncio.create_task(one.evaluations.supervisors.end())
        await asyncio.sleep(0)
        one.forker.gate.set()
        await ending

    found = scene(scenario, tasks=1)

    assert [signal.SIGUSR2] == found.forker.last["eval-000000"].signals


@pytest.mark.slow
def test_a_real_supervisor_has_an_evaluation_judged(tmp_path):
    """Its facts are posted nowhere, so they are found when it has ended."""

    async def work():
        fork_client = await ForkClient.open("gyre.rollout.main", tmp_path / "nursery.log")
        one = Scene(tmp_path / "run", tasks=1, fork_client=fork_client)
        one.order = replace(order("echo a > work; echo b >> work"), facts_url=None)
        await one.begin()

        async def is_over():
            await one.evaluations.supervisors.look()
            await one.settle()
            return one.of(EvaluationRound)

        await until(is_over, "a round")
        await one.evaluations.supervisors.end()
        await fork_client.close()
        return one

    found = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))

    assert [("valid", 0.2)] == [(one.outcome, one.score) for one in found.of(EvaluationScored)]
    assert [0.2] == [one.mean for one in found.of(EvaluationRound)]


def test_a_run_without_held_out_tasks_asks_for_none(scene):
    found = scene(lambda one: one.begin(), tasks=0)

    assert [] == found.of(EvaluationRequested)


def history_of(one):
    """Facts and orders as a journal gives them back."""
    scheduler = Scheduler(SHAPE)
    found = []
    for fact in one.facts:
        found.append(fact)
        if isinstance(fact, EVENTS):
            orders = scheduler.handle(fact, 0.0)
            found += [order for order in orders if isinstance(order, LaunchEvaluation)]
    return found


def test_a_round_that_an_earlier_controller_left_open_goes_on(scene):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        one.abandon()
        again = Scene(one.folder, tasks=3)
        again.scheduler = one.scheduler
        again.evaluations.recall([*history_of(one), Published(version=1, silent=())])
        await again.settle()
        assert {"eval-000001", "eval-000002"} == set(again.evaluations.assignments)
        for number in (1, 2):
            await again.close(number)
        one.again = again

    again = scene(scenario).again

    assert {"eval-000003", "eval-000004"} == set(again.forker.last)
    assert [1, 2] == [one.evaluation for one in again.of(EvaluationScored)]
    assert [(0, 3)] == [(one.version, one.num_valid) for one in again.of(EvaluationRound)]
    # The one that was due meanwhile begins when this one is closed.
    assert [3, 4, 5] == [one.evaluation for one in again.of(EvaluationRequested)]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (["eval-000000"], "eval-000000.1"),
        (["eval-000000", "eval-000000.1"], "eval-000000.2"),
    ],
)
def test_an_evaluation_that_was_ended_with_its_run_begins_anew(scene, before, now):
    """SPEC 10; under a name of its own, and again after another stop."""
    seats = []

    async def scenario(one):
        for name in before:
            folder = one.folder / "attempts" / name
            write_order(folder, order("true"))
            file = FactsFile(folder)
            for fact in (Prepared(mark="m"), Launched(monotonic_s=0.0, boot="b"), CANCELLED):
                file.append(fact, at=0.0)
            file.close()
        one.evaluations.recall(
            [
                RunStarted(),
                EvaluationRequested(evaluation=0),
                LaunchEvaluation(evaluation=0, engine=EngineId(1)),
            ]
        )
        await one.settle_but_deciding()
        seats.append(dict(one.evaluations.assignments))
        one.evaluations.move([EvaluationMove(evaluation=0, engine=EngineId(2))])
        seats.append(dict(one.evaluations.assignments))
        for at, fact in enumerate([ENDED, VALID]):
            await one.evaluations.supervisors.receive(
                now, FactEntry(sequence=at, at=0.0, fact=fact)
            )
        await one.settle_but_deciding()

    found = scene(scenario, tasks=1)

    assert [{now: 1}, {now: 2}] == seats
    assert [(now, 1.0)] == [(one.execution, one.score) for one in found.of(EvaluationScored)]
    assert [TimerFired()] == found.of(TimerFired), "routes follow the new name"


def test_what_a_dying_controller_asked_for_in_part_is_asked_for_whole(scene):
    async def scenario(one):
        one.evaluations.recall([RunStarted(), EvaluationRequested(evaluation=0)])
        one.take_all_but_deciding()

    assert [1, 2] == [one.evaluation for one in scene(scenario).of(EvaluationRequested)]


def test_a_round_without_its_sum_is_summed_up(scene):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        again = Scene(one.folder, tasks=1)
        facts = [fact for fact in history_of(one) if not isinstance(fact, EvaluationRound)]
        again.evaluations.recall(facts)
        again.take_all_but_deciding()
        one.again = again

    again = scene(scenario, tasks=1).again

    assert [1.0] == [one.mean for one in again.of(EvaluationRound)]


def test_a_run_that_left_nothing_open_goes_on_as_it_was(scene):
    async def scenario(one):
        await one.begin()
        await one.close(0)
        again = Scene(one.folder / "again", tasks=1, every=2)
        again.scheduler = one.scheduler
        again.evaluations.recall([*one.facts, Published(version=1, silent=())])
        await again.settle()
        assert [] == again.facts
        await again.publish(2)
        one.again = again

    again = scene(scenario, tasks=1, every=2).again

    assert [1] == [one.evaluation for one in again.of(EvaluationRequested)]


def test_the_versions_that_sampled_an_evaluation_are_told(tmp_path):
    path = path_of(tmp_path, "eval-000000")
    path.parent.mkdir(parents=True)
    log = CallLog(path)
    for number, versions in enumerate([(2,), (2, 3), (None,)], start=1):
        log.append(call(number, versions))
    log.close()

    assert (2, 3) == versions_of(tmp_path, "eval-000000")
    assert () == versions_of(tmp_path, "eval-000001")
    path.write_bytes(b"no log")
    assert () == versions_of(tmp_path, "eval-000000")


def call(number, versions):
    return CallClosed(
        call=number,
        parent=0,
        inputs=(),
        prompt=b"",
        output=b"\0\0\0\0" * len(versions),
        logprobs=None,
        spans=tuple(Span(engine="a", version=one, tokens=1) for one in versions),
        finish="stop",
        message=Message(role="assistant", text=""),
        keys=(),
        role="main",
        harness="generic",
        agent=None,
        fork=None,
        ambiguous=False,
        sampling=SamplingParams(),
        opened_at=0.0,
        closed_at=0.0,
    )
