"""Hands that obey a scheduler beside its world, and plain routes to compare theirs with."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.controller.support.plain_routes import PlainSeats, PlainTable, Told
from tests.scheduler.support.world import World

from gyre.batching.task_sampler import TaskSampler
from gyre.controller.command_executor import CommandExecutor
from gyre.controller.executions.group_executions import GroupExecutions
from gyre.controller.routes import ChangeTrackingDict, RouteTables
from gyre.scheduler.messages import EvaluationEnded, ExecutionTerminated
from gyre.types.ids import evaluation_name, shard_of
from gyre.types.outcomes import Ending, Terminated
from gyre.types.run_events import ExecutionRelaunched
from gyre.types.tasks import EvaluationRule, Task

ENDED = Terminated(ending=Ending.COMPLETED, reason="", elapsed_s=1.0, state=None)
SHARDS = 2


class Tasks:
    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def get(self, index):
        judge = EvaluationRule(argv=("true",))
        return Task(id=f"task-{index}", instruction="", files=None, evaluation=judge)


class Supervisors:
    """Executions end when the world says so."""

    def launch(self, name, task, folder, listener):
        pass

    def adopt(self, name, task, folder, listener, *, is_cancelled, is_terminated):
        pass

    def cancel(self, name):
        pass

    def forget(self, name):
        pass


class Evaluations:
    """Seats as held-out evaluations keep them."""

    def __init__(self):
        self.assignments = ChangeTrackingDict()

    def launch(self, order):
        self.assignments[evaluation_name(order.evaluation)] = order.engine

    def move(self, moves):
        for one in moves:
            if (name := evaluation_name(one.evaluation)) in self.assignments:
                self.assignments[name] = one.engine

    def noticed(self, now, fact):
        pass


class Anybody:
    """Does at once, and without a trace, whatever it is asked."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def engine_name(engine):
    return f"engine-{engine}"


ENGINE_NAMES = [engine_name(engine) for engine in range(64)]
"""More than any test here has."""


def attempts_in(folder, tasks):
    return GroupExecutions(
        FakeRunLoop(), folder, Tasks(tasks), TaskSampler(tasks, seed=3), Supervisors()
    )


def hands_of(scheduler, attempts, routes, evaluations=None):
    loop = Anybody()
    return CommandExecutor(loop, scheduler, attempts, Anybody(), Anybody(), routes, evaluations)


class Routed(World):
    """The scheduler's world with hands that obey beside it, and plain routes to compare."""

    def __init__(self, shape, folder):
        self.shards = [[Told() for _ in range(SHARDS)] for _ in ("hands", "plain")]
        for shard in range(SHARDS):
            self.answer(shard, waits=False)
        self.plain, self.seats = [], PlainSeats()
        self.attempts = attempts_in(folder, 5)
        self.evaluations = Evaluations()
        self.executor = None
        super().__init__(shape)

    def _obey(self, commands, burst_just_ended):
        super()._obey(commands, burst_just_ended)
        if self.executor is None:
            self._join()
        self._forget(self.log[-1][0])
        self.executor.execute(commands)
        self.seats.execute(commands, self.attempts.name_at)
        self.compare()

    def _join(self):
        executor, plain = self.shards
        self.routes = RouteTables(executor, ENGINE_NAMES)
        self.plain = [PlainTable(one, engine_name) for one in plain]
        self.executor = hands_of(self.scheduler, self.attempts, self.routes, self.evaluations)

    def _forget(self, event):
        """Whoever has ended is gone before the scheduler decides on it."""
        match event:
            case ExecutionTerminated(group=group, member=member):
                name = self.attempts.name_at(group, member)
                if name in self.seats.running:
                    one = SimpleNamespace(name=name)
                    finish(self.attempts.terminated(one, ENDED))
                    del self.seats.running[name]
            case EvaluationEnded(evaluation=number):
                self.evaluations.assignments.pop(evaluation_name(number), None)
                self.seats.evaluations.pop(evaluation_name(number), None)

    def compare(self):
        parts = [{} for _ in range(SHARDS)]
        for name, engine in self.seats.all().items():
            parts[shard_of(name, SHARDS)][name] = engine
        for table, part in zip(self.plain, parts, strict=True):
            table.want(part, self.scheduler.engines.is_ready)

    async def work_plainly(self):
        async with asyncio.TaskGroup() as group:
            for table in self.plain:
                group.create_task(table.work())

    def relaunch(self, name):
        """Under a new name, which the world knows nothing of."""
        group, member = place = self.seats.running.pop(name)
        self.attempts.lost(SimpleNamespace(name=name), "lost")
        new = self.attempts.name_at(group, member)
        self.seats.running[new] = place
        fact = ExecutionRelaunched(group=group, member=member, execution=new, reason="lost")
        self.executor.noticed(self.now, fact)
        self.compare()

    def another(self, shard):
        self.routes.again(shard)
        self.plain[shard].again()

    def answer(self, shard, *, waits):
        for shards in self.shards:
            if waits:
                shards[shard].go.clear()
            else:
                shards[shard].go.set()

    def orders(self, whose):
        return [one.orders for one in self.shards[whose]]


def finish(work):
    with pytest.raises(StopIteration):
        work.send(None)
