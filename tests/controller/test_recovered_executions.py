"""Groups of an earlier controller: the same queries, names and scores, whenever it was cut off."""

import random

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.scheduler.support.scene import shape

from gyre.batching.task_sampler import TaskSampler
from gyre.controller.executions.group_executions import GroupExecutions, next_name
from gyre.controller.recovered_state import (
    ConsumedGroups,
    RecoveredExecution,
    RecoveredGroup,
    RecoveredState,
    RecoveredStep,
    recover,
)
from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    CellDied,
    CellRecovered,
    GroupAssigned,
    LaunchExecution,
    LoadWeights,
    OfferGroup,
    RestartCell,
    RunStarted,
    StepTaken,
)
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import ConfigError
from gyre.types.outcomes import Closed, Ending, Outcome, Terminated
from gyre.types.run_events import ExecutionRelaunched, GroupDrawn, RewardGiven
from gyre.types.tasks import EvaluationRule, Task

SHAPE = shape(
    groups_per_batch=2, executions_per_group=2, surplus=1, steps=4, num_cells=1, cell_capacity=4
)
TASKS = 5
ENDED = Terminated(ending=Ending.COMPLETED, reason="", elapsed_s=1.0, state=None)


class Tasks:
    def __init__(self, prefix="task"):
        self._prefix = prefix

    def __len__(self):
        return TASKS

    def get(self, index):
        judge = EvaluationRule(argv=("true",))
        return Task(id=f"{self._prefix}-{index}", instruction="", files=None, evaluation=judge)


class One:
    def __init__(self, name, task):
        self.name, self.task, self.terminated = name, task, ENDED


class Supervisors:
    """What attempts ask for; executions end when the test says so."""

    def __init__(self):
        self.launched, self.adopted, self.cancelled = {}, {}, set()

    def launch(self, name, task, folder, listener):
        assert name not in self.launched
        self.launched[name] = One(name, task)

    def adopt(self, name, task, folder, listener, *, is_cancelled, is_terminated):
        self.launched[name] = One(name, task)
        self.adopted[name] = is_cancelled, is_terminated

    def cancel(self, name):
        self.cancelled.add(name)

    def forget(self, name):
        self.launched.pop(name, None)


class Live:
    """Attempts beside a real scheduler: facts are heard one by one, in any order."""

    def __init__(self, folder, *, scheduler=None, tasks=None):
        self.loop = FakeRunLoop()
        self.journal, self.inbox, self.offered = [], self.loop.recorded, {}
        self.scheduler = scheduler or Scheduler(SHAPE)
        self.queries = TaskSampler(TASKS, seed=3)
        self.attempts = GroupExecutions(
            self.loop, folder, tasks or Tasks(), self.queries, Supervisors()
        )

    @property
    def supervisors(self):
        return self.attempts.supervisors

    def hear_all(self):
        while self.inbox:
            fact = self.inbox.pop(0)
            self.journal.append((0.0, fact))
            if isinstance(fact, EVENTS):
                for order in self.scheduler.handle(fact, 0.0):
                    self._obey(order)
            self.attempts.noticed(0.0, fact)

    def _obey(self, order):
        match order:
            case AdmitGroup():
                self.attempts.admit(order)
            case LaunchExecution():
                self.attempts.launch(order)
            case CancelExecution():
                self.attempts.cancel(order)
            case OfferGroup(group=group):
                self.offered[group] = self.attempts.take(group, SHAPE.group_size)
            case RestartCell(cell=cell):
                self.inbox.append(CellRecovered(cell=cell, version=0))
            case LoadWeights():
                pass

    def end_some(self, chance):
        """Of what runs one terminates, or closes, or is lost."""
        running, open_ones = list(self.attempts.running), list(self.supervisors.launched)
        closing = [one for one in open_ones if one not in running and not self._is_closed(one)]
        if running and (not closing or chance.random() < 0.5):
            name = chance.choice(running)
            one = self.supervisors.launched.get(name)
            if one is not None and chance.random() < 0.1:
                del self.supervisors.launched[name]
                self.attempts.lost(one, "lost")
            elif one is not None:
                run(self.attempts.terminated(one, ENDED))
        elif closing:
            name = chance.choice(closing)
            score = round(chance.random(), 3)
            closed = Closed(outcome=Outcome.VALID, score=score, reason=None)
            run(self.attempts.closed(self.supervisors.launched[name], closed))

    def _is_closed(self, name):
        rewarded = [one for _, one in self.journal if isinstance(one, RewardGiven)]
        return name in {one.execution for one in rewarded}


def run(work):
    with pytest.raises(StopIteration):
        work.send(None)


def lived(folder, seed, turns):
    chance, one = random.Random(seed), Live(folder)
    one.inbox.append(RunStarted())
    one.hear_all()
    for _ in range(turns):
        one.end_some(chance)
        one.hear_all()
    return one


@pytest.mark.parametrize("seed", range(6))
def test_cut_after_any_fact_names_queries_and_scores_are_as_they_were(tmp_path, seed):
    turns = random.Random(seed).randrange(5, 40)
    before = lived(tmp_path, seed, turns)
    found = recover(SHAPE, before.journal)
    again = Live(tmp_path, scheduler=found.scheduler)
    left = again.attempts.recall(found)
    for group in found.outstanding:
        again.attempts.resume(group)

    assert before.offered == left
    assert dict(before.attempts.running) == dict(again.attempts.running)
    open_ones = {name for name in before.supervisors.launched if not before._is_closed(name)}
    assert open_ones == set(again.supervisors.adopted)
    assert before.queries.num_drawn == again.queries.num_drawn
    assert [before.queries.draw() for _ in range(7)] == [again.queries.draw() for _ in range(7)]
    assert [] == again.inbox


@pytest.mark.parametrize("seed", range(4))
def test_cut_in_the_middle_of_a_commit_what_was_asked_for_is_answered_once(tmp_path, seed):
    """Facts of one commit may be on the disk in part."""
    before = lived(tmp_path, seed, 12)
    draws = [one for _, one in before.journal if isinstance(one, GroupDrawn)]
    for cut in range(1, len(before.journal)):
        found = recover(SHAPE, before.journal[:cut])
        again = Live(tmp_path, scheduler=found.scheduler)
        again.attempts.recall(found)
        for group in found.outstanding:
            again.attempts.resume(group)
        drawn = [one for _, one in before.journal[:cut] if isinstance(one, GroupDrawn)]
        drawn += [one for one in again.inbox if isinstance(one, GroupDrawn)]
        assert draws[: len(drawn)] == drawn


def test_tasks_that_are_not_those_of_the_run_are_refused(tmp_path):
    before = lived(tmp_path, 1, 3)
    found = recover(SHAPE, before.journal)
    again = Live(tmp_path, scheduler=found.scheduler, tasks=Tasks("other"))

    with pytest.raises(ConfigError, match="not those that the run began with: group 0 drew task"):
        again.attempts.recall(found)


def test_a_new_name_is_used_only_once_it_is_written_down(tmp_path):
    one = lived(tmp_path, 1, 0)
    name = next(iter(one.attempts.running))
    lost = one.supervisors.launched.pop(name)
    one.attempts.lost(lost, "its key is gone")

    assert next_name(name) not in one.supervisors.launched
    one.hear_all()
    assert next_name(name) in one.supervisors.launched
    assert [next_name(name)] == [
        fact.execution for _, fact in one.journal if isinstance(fact, ExecutionRelaunched)
    ]


@pytest.mark.parametrize("is_known_to_be_lost", [True, False])
def test_one_that_is_cancelled_before_its_new_name_is_written_down_is_cancelled_then(
    tmp_path, is_known_to_be_lost
):
    """Or a group would count one more than it has."""
    one = lived(tmp_path, 1, 0)
    name, (group, member) = next(iter(one.attempts.running.items()))
    lost = one.supervisors.launched.pop(name)
    cancel = CancelExecution(group=group, member=member)
    if is_known_to_be_lost:
        one.attempts.lost(lost, "its key is gone")
        one.attempts.cancel(cancel)
    else:
        one.attempts.cancel(cancel)
        one.attempts.lost(lost, "its key is gone")
    one.hear_all()

    assert next_name(name) in one.supervisors.cancelled


def test_names_of_executions_that_begin_anew_keep_their_member_at_the_end():
    assert "g00001.1-02" == next_name("g00001-02")
    assert "g00001.2-02" == next_name("g00001.1-02")


def test_a_dead_cell_is_no_reason_to_draw_again(tmp_path):
    before = lived(tmp_path, 2, 10)
    before.inbox.append(CellDied(cell=0))
    before.hear_all()
    found = recover(SHAPE, before.journal)
    again = Live(tmp_path, scheduler=found.scheduler)
    again.attempts.recall(found)

    assert before.queries.num_drawn == again.queries.num_drawn


def drawn_and_ready(one, number):
    one.attempts.admit(AdmitGroup(group=number, version=0, size=1))
    query = one.attempts._groups[number].query
    one.attempts.take(number, 1)
    return query


def test_a_query_is_out_until_its_group_is_consumed(tmp_path):
    """SPEC 1.1: being ready is not enough."""
    one = Live(tmp_path)
    first = [drawn_and_ready(one, number) for number in range(TASKS - 1)]
    for group in (0, 1):
        one.attempts.noticed(0.0, GroupAssigned(group=group, step=0))
    again = [drawn_and_ready(one, TASKS - 1 + number) for number in range(2)]
    one.attempts.noticed(0.0, StepTaken(step=0))
    then = [drawn_and_ready(one, TASKS + 1 + number) for number in range(2)]

    assert {*range(TASKS)} == {*first, again[0]}
    assert {*first[:2]} == {*then}


def test_what_was_consumed_and_what_was_pulled_is_recalled(tmp_path):
    """SPEC 1.1: the same queries are out as before, whether a checkpoint covers their step."""

    def past(groups):
        found = RecoveredState(SHAPE)
        for number in range(4):
            order = AdmitGroup(group=number, version=0, size=1)
            found.drawing.append(order)
            if number in groups:
                members = [RecoveredExecution(outcome=Outcome.VALID)]
                found.groups[number] = RecoveredGroup(order, members, task=None)
        for number in range(4):
            found.drawing.append(OfferGroup(group=number, version=0, members=(0,), is_void=False))
        found.drawing.append(ConsumedGroups((0, 1)))
        found.open = 1, RecoveredStep(groups=[2])
        return found

    drawn = []
    for groups in (range(4), (2, 3)):
        one = Live(tmp_path)
        one.attempts.recall(past(groups))
        one.attempts.noticed(0.0, StepTaken(step=1))
        drawn.append([one.queries.draw() for _ in range(TASKS)])

    fresh = TaskSampler(TASKS, seed=3)
    out = [fresh.draw() for _ in range(4)][3]
    assert drawn[0] == drawn[1]
    assert out not in drawn[0][: TASKS - 1]


def test_an_execution_without_a_reward_says_why(tmp_path):
    """SPEC 6.5: the journal tells what made a group void."""
    one = lived(tmp_path, 1, 0)
    name = next(iter(one.attempts.running))
    child = one.supervisors.launched[name]
    run(one.attempts.terminated(child, ENDED))
    closed = Closed(outcome=Outcome.EXCLUDED, score=None, reason="its evaluator gave no score")
    run(one.attempts.closed(child, closed))
    one.hear_all()

    (given,) = [fact for _, fact in one.journal if isinstance(fact, RewardGiven)]
    assert (None, "its evaluator gave no score") == (given.score, given.reason)
