"""Routes by the plainest rule, for comparison: after every event all that runs is looked at."""

import asyncio

from gyre.scheduler.messages import EnterTraining, LaunchEvaluation, LaunchExecution, MoveExecutions
from gyre.types.ids import evaluation_name


class Told:
    """A shard that writes down what it is told, and answers when it is let."""

    def __init__(self):
        self.orders = []
        self.go = asyncio.Event()

    async def assign(self, version, routes):
        self.orders.append((version, dict(routes)))
        await self.go.wait()
        return 1


class PlainSeats:
    """Who runs where, from the orders alone."""

    def __init__(self):
        self.places = {}
        self.running = {}
        self.evaluations = {}

    def execute(self, orders, name_of):
        for order in orders:
            match order:
                case LaunchExecution(group=group, member=member, engine=engine):
                    self.places[group, member] = engine
                    self.running[name_of(group, member)] = group, member
                case LaunchEvaluation(evaluation=number, engine=engine):
                    self.evaluations[evaluation_name(number)] = engine
                case EnterTraining() | MoveExecutions():
                    self._move(order)

    def _move(self, order):
        for one in order.moves:
            self.places[one.group, one.member] = one.engine
        for one in order.evaluations:
            if (name := evaluation_name(one.evaluation)) in self.evaluations:
                self.evaluations[name] = one.engine

    def all(self):
        running = {name: self.places[place] for name, place in self.running.items()}
        return running | self.evaluations


class PlainTable:
    """One shard's routes, compared whole with what it was told."""

    def __init__(self, proxy, name_of):
        self._proxy, self._name_of = proxy, name_of
        self._version = self._life = 0
        self._wanted, self._told = {}, {}
        self._changed = asyncio.Event()

    def want(self, seats, is_ready):
        self._wanted = {
            execution: self._name_of(engine) if is_ready(engine) else None
            for execution, engine in seats.items()
        }
        self._wake()

    def again(self):
        self._life += 1
        self._told.clear()
        self._wake()

    async def work(self):
        while True:
            await self._changed.wait()
            self._changed.clear()
            while changes := self._changes():
                self._version += 1
                life = self._life
                await self._proxy.assign(self._version, changes)
                if life != self._life:
                    continue
                for execution, engine in changes.items():
                    if engine is None and execution not in self._wanted:
                        self._told.pop(execution, None)
                    else:
                        self._told[execution] = engine

    def _wake(self):
        if self._changes():
            self._changed.set()

    def _changes(self):
        found = {
            execution: engine
            for execution, engine in self._wanted.items()
            if self._told.get(execution) != engine
        }
        return found | {one: None for one in self._told if one not in self._wanted}
