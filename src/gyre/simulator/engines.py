"""Engines whose speed follows load; the event heap.

Executions on engines whose speed follows their load, re-planned in O(log n) per change.

Rule 1: all executions of an engine progress at one rate, so each engine keeps one clock of work
done, and an execution is due when that clock reaches a fixed reading.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol, TypeAlias

from gyre.simulator.workload import Decode, SimulatedDeadlines, SimulatedExecution
from gyre.types.ids import EngineId, GroupId
from gyre.types.outcomes import Ending

Action: TypeAlias = Callable[[], None]


class EventQueue:
    """A heap of actions, and the time of the last one taken."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._planned = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, action: Action) -> None:
        heappush(self._heap, (max(time, self.now), self._planned, action))
        self._planned += 1

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def take(self) -> Action:
        """The next action, its time being now."""
        self.now, _, action = heappop(self._heap)
        return action


Key: TypeAlias = tuple[GroupId, int]
"""A group and a member of it."""


@dataclass(slots=True, eq=False)
class RunningExecution:
    """An execution whose harness is up."""

    key: Key
    drawn: SimulatedExecution
    left_s: float
    """Work to do at rate 1, as of when it was last without an engine."""
    engine: EngineId | None = None
    assignment: int = 0
    """Numbers its stay at an engine; what was planned for another stay is void."""
    seated_s: float = 0.0
    due_s: float = 0.0
    """The reading of its engine's clock at which its work is done."""
    charged_s: float = 0.0
    """Time at engines before this stay; time without one is not charged (SPEC 6.1)."""


@dataclass(slots=True)
class _Engine:
    capacity: int
    rate: float
    num_running: int = 0
    since_s: float = 0.0
    """When the rate last changed."""
    clock_s: float = 0.0
    """What the clock of work done showed then."""
    due: list[tuple[float, int, RunningExecution]] = field(default_factory=list)
    """A heap of (reading, seat, execution); those that left are skipped later."""
    planned_s: float | None = None
    """When it is looked at next."""

    def reading(self, now: float) -> float:
        return self.clock_s + (now - self.since_s) * self.rate

    def time_of(self, reading: float) -> float:
        return self.since_s + (reading - self.clock_s) / self.rate

    def set_rate(self, rate: float, now: float) -> None:
        if rate != self.rate:
            self.clock_s, self.since_s, self.rate = self.reading(now), now, rate

    def first_due(self) -> RunningExecution | None:
        while self.due:
            _, assignment, running = self.due[0]
            if running.assignment == assignment:
                return running
            heappop(self.due)
        return None


class EngineListener(Protocol):
    """Hears of executions that engines have run."""

    def ended(self, running: RunningExecution, charged_s: float, ending: Ending) -> None:
        """A harness, by itself or by its deadline, after so long on engines."""


class SimulatedEngines:
    """All simulated engines, and the executions that run on them."""

    def __init__(
        self,
        agenda: EventQueue,
        capacities: Iterable[int],
        *,
        decode: Decode,
        deadlines: SimulatedDeadlines,
        listener: EngineListener,
    ) -> None:
        self._agenda = agenda
        self._decode = decode
        self._deadlines = deadlines
        self._listener = listener
        self._engines = [_Engine(capacity, decode.rate(0.0)) for capacity in capacities]
        if self._is_steady:
            for engine in self._engines:
                engine.rate = 1.0
        self._running: dict[Key, RunningExecution] = {}
        self._num_assignments = 0

    def launch(self, key: Key, drawn: SimulatedExecution, engine: EngineId) -> None:
        # At a rate that is always 1 the deadline is a piece of work like any other.
        limit_s = self._deadlines.harness_s
        work_s = min(drawn.work_s, limit_s) if self._is_steady else drawn.work_s
        running = RunningExecution(key, drawn, work_s)
        self._running[key] = running
        self._sit(running, engine)

    def move(self, key: Key, engine: EngineId) -> None:
        """Its calls go to this engine from now on."""
        running = self._running.get(key)
        if running is not None and running.engine != engine:
            self._rise(running)
            self._sit(running, engine)

    def strand(self, engine: EngineId) -> None:
        """The engine serves no more: its executions stand still."""
        for _, assignment, running in sorted(self._engines[engine].due, key=lambda one: one[1]):
            if running.assignment == assignment:
                self._rise(running)

    def cancel(self, key: Key) -> bool:
        """Whether it was running, and is no more."""
        running = self._running.pop(key, None)
        if running is None:
            return False
        self._rise(running)
        return True

    @property
    def _is_steady(self) -> bool:
        return self._decode.share == 0

    def _sit(self, running: RunningExecution, number: EngineId) -> None:
        now = self._agenda.now
        engine = self._engines[number]
        self._num_assignments += 1
        running.engine, running.assignment, running.seated_s = number, self._num_assignments, now
        self._load(engine, 1)
        running.due_s = engine.reading(now) + running.left_s
        heappush(engine.due, (running.due_s, running.assignment, running))
        self._plan(engine)
        if not self._is_steady:
            left_s = self._deadlines.harness_s - running.charged_s
            self._agenda.after(left_s, partial(self._time_out, running, running.assignment))

    def _rise(self, running: RunningExecution) -> None:
        if running.engine is None:
            return
        now = self._agenda.now
        engine = self._engines[running.engine]
        running.left_s = max(0.0, running.due_s - engine.reading(now))
        running.charged_s += now - running.seated_s
        running.engine, running.assignment = None, 0
        self._load(engine, -1)
        self._plan(engine)

    def _load(self, engine: _Engine, change: int) -> None:
        engine.num_running += change
        if not self._is_steady:
            rate = self._decode.rate(engine.num_running / engine.capacity)
            engine.set_rate(rate, self._agenda.now)

    def _plan(self, engine: _Engine) -> None:
        """It is looked at when its first is due, or before, and then planned again."""
        first = engine.first_due()
        if first is None:
            return
        due_s = engine.time_of(first.due_s)
        if engine.planned_s is None or due_s < engine.planned_s:
            engine.planned_s = due_s
            self._agenda.at(due_s, partial(self._look, engine, due_s))

    def _look(self, engine: _Engine, planned_s: float) -> None:
        if engine.planned_s != planned_s:
            return
        engine.planned_s = None
        first = engine.first_due()
        if first is not None and engine.time_of(first.due_s) <= self._agenda.now:
            self._end(first, first.drawn.ending)
        self._plan(engine)

    def _time_out(self, running: RunningExecution, assignment: int) -> None:
        if running.assignment == assignment:
            self._end(running, Ending.TIMED_OUT)

    def _end(self, running: RunningExecution, ending: Ending) -> None:
        del self._running[running.key]
        self._rise(running)
        is_late = running.drawn.work_s > self._deadlines.harness_s and self._is_steady
        self._listener.ended(running, running.charged_s, Ending.TIMED_OUT if is_late else ending)
