"""Cells and engines over time."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import (
    Command,
    EnterTraining,
    LeaveReason,
    LeaveTraining,
    MoveExecutions,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import CORE, EngineId
from gyre.types.run_events import ClaimTrained, StepMade, TransitionTimed

at_of: Callable[[Any], float] = attrgetter("at_s")
"""The time of a row, by which rows are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpan:
    """A cell in one state."""

    start_s: float
    end_s: float
    state: CellState


@dataclass(slots=True)
class TransitionCounts:
    """How often cells changed their role, and what came of it."""

    entered: int = 0
    """Ways into training that began."""
    left: int = 0
    """Ways home that began."""
    turned_back: int = 0
    """Of those, from the way into training."""
    rescues: int = 0
    failed: int = 0
    executions_moved: int = 0
    """Routes changed under live executions."""

    def record_command(self, command: Command) -> None:
        match command:
            case EnterTraining(moves=moves):
                self.entered += 1
                self.executions_moved += len(moves)
            case MoveExecutions(moves=moves):
                self.executions_moved += len(moves)
            case LeaveTraining(reason=reason):
                self.left += 1
                self.rescues += reason is LeaveReason.RESCUE
            case _:
                pass


class Intervals:
    """A list of time intervals, in order of their ends."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._longest_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, begin_s: float, end_s: float) -> None:
        self._begins.append(begin_s)
        self._ends.append(end_s)
        self._longest_s = max(self._longest_s, end_s - begin_s)

    def inside(self, since_s: float, until_s: float) -> float:
        """Seconds within the window; stretches that lie over each other count each."""
        # Intervals that end later than this began behind the window.
        first = bisect_right(self._ends, since_s)
        last = bisect_right(self._ends, until_s + self._longest_s)
        return sum(
            max(0.0, min(self._ends[index], until_s) - max(self._begins[index], since_s))
            for index in range(first, last)
        )


WEIGHT_PHASES = ("pull", "load")
"""Phases of a transition in which a cell gets weights."""


class CellStateChange(NamedTuple):
    """A cell or an engine is in this state from now on."""

    at_s: float
    state: CellState


class EngineOccupancy(NamedTuple):
    """Executions at an engine from now on."""

    at_s: float
    load: int
    seat_s: float
    """Sum over the time before: executions there, up to the capacity it is meant to have."""


class TimedTransition(NamedTuple):
    """A transition that came to its end."""

    at_s: float
    fact: TransitionTimed


def mean_phases(timed: Iterable[TimedTransition]) -> dict[str, float]:
    """Mean seconds by phase, in the order in which they come."""
    spent: dict[str, list[float]] = defaultdict(list)
    for transition in timed:
        for phase, seconds in transition.fact.phases.items():
            spent[phase].append(seconds)
    return {phase: fmean(each) for phase, each in spent.items()}


class FleetStates:
    """What every cell did over time, and whether standalone engines served."""

    def __init__(self, scheduler: Scheduler) -> None:
        shape = scheduler.shape
        self._scheduler = scheduler
        self.num_cells = shape.num_cells
        self.capacities = [shape.cell_capacity] * shape.num_cells + [*shape.standalone_capacities]
        self._now = self._states()
        self.changes = [[CellStateChange(0.0, state)] for state in self._now]
        self.counts = TransitionCounts()
        self.transitions: list[TimedTransition] = []
        self._timed: set[int] = set()

    def _states(self) -> tuple[CellState, ...]:
        """A standalone engine serves, or is fenced."""
        states = self._scheduler.cells.states
        if len(self.capacities) == self.num_cells:
            return states
        is_ready = self._scheduler.engines.is_ready
        engines = range(self.num_cells, len(self.capacities))
        return states + tuple(
            CellState.SERVING if is_ready(EngineId(engine)) else CellState.FENCED
            for engine in engines
        )

    def note(self, now: float) -> None:
        """States may have changed."""
        states = self._states()
        if states == self._now:
            return
        for changes, before, state in zip(self.changes, self._now, states, strict=True):
            if state is before:
                continue
            self.counts.turned_back += (before, state) == (CellState.ENTERING, CellState.LEAVING)
            if changes[-1].at_s == now and len(changes) > 1:
                changes.pop()
            if state is not changes[-1].state:
                changes.append(CellStateChange(now, state))
        self._now = states

    def record_fact(self, now: float, fact: object) -> None:
        match fact:
            case TransitionTimed(cell=cell, transition=transition):
                if 0 <= cell < self.num_cells and transition not in self._timed:
                    self._timed.add(transition)
                    self.transitions.append(TimedTransition(now, fact))
            case _:
                pass

    @property
    def states(self) -> tuple[CellState, ...]:
        """Of the cells, core first."""
        return self._now[: self.num_cells]

    def spans(self, engine: int, since_s: float, until_s: float) -> Iterator[CellSpan]:
        """States of a window without gaps."""
        changes = self.changes[engine]
        first = max(0, bisect_right(changes, since_s, key=at_of) - 1)
        for at in range(first, len(changes)):
            one = changes[at]
            end_s = changes[at + 1].at_s if at + 1 < len(changes) else until_s
            start_s, end_s = max(one.at_s, since_s), min(end_s, until_s)
            if one.at_s > until_s:
                return
            if end_s > start_s:
                yield CellSpan(start_s=start_s, end_s=end_s, state=one.state)

    def change_at(self, engine: int, at_s: float) -> CellStateChange:
        changes = self.changes[engine]
        return changes[max(1, bisect_right(changes, at_s, key=at_of)) - 1]


class FleetLoad:
    """Executions at every engine over time, and when cells had claims or got weights."""

    def __init__(self, scheduler: Scheduler, capacities: Sequence[int]) -> None:
        self._engines = scheduler.engines
        self._capacities = capacities
        num_cells = scheduler.shape.num_cells
        self._now = self._engines.loads
        self.seats = [[EngineOccupancy(0.0, load, 0.0)] for load in self._now]
        self.busy = [Intervals() for _ in range(num_cells)]
        """Claims and updates."""
        self.weights = [Intervals() for _ in range(num_cells)]
        """Weights pulled or loaded between roles."""
        self._seen: set[tuple[object, ...]] = set()

    def note(self, now: float) -> None:
        """Loads may have changed."""
        loads = self._engines.loads
        if loads == self._now:
            return
        for engine, (seats, load) in enumerate(zip(self.seats, loads, strict=True)):
            last = seats[-1]
            if load == last.load:
                continue
            if last.at_s == now:
                seats[-1] = EngineOccupancy(now, load, last.seat_s)
            else:
                seats.append(EngineOccupancy(now, load, self._seat_s(engine, last, now)))
        self._now = loads

    def record_fact(self, now: float, fact: object) -> None:
        num_cells = len(self.busy)
        match fact:
            case ClaimTrained(step=step, claim=claim, cell=cell, seconds=seconds):
                if 0 <= cell < num_cells and self._is_new("claim", step, claim, cell):
                    self.busy[cell].add(now - seconds, now)
            case StepMade(step=step, reduce_s=reduce_s, step_s=step_s):
                if self._is_new("step", step):
                    self.busy[CORE].add(now - reduce_s - step_s, now)
            case TransitionTimed(cell=cell, transition=transition):
                if 0 <= cell < num_cells and self._is_new("transition", transition):
                    self._add_weights(now, fact)
            case _:
                pass

    def _add_weights(self, now: float, fact: TransitionTimed) -> None:
        """Its phases follow each other, and the last one ends now."""
        begin_s = now - sum(fact.phases.values())
        for phase, seconds in fact.phases.items():
            if phase in WEIGHT_PHASES:
                self.weights[fact.cell].add(begin_s, begin_s + seconds)
            begin_s += seconds

    def _is_new(self, *what: object) -> bool:
        is_new = what not in self._seen
        self._seen.add(what)
        return is_new

    def load_at(self, engine: int, at_s: float) -> int:
        return self._seats_at(engine, at_s).load

    def seat_s(self, engine: int, at_s: float) -> float:
        """Sum of executions, up to its capacity, over all time before."""
        return self._seat_s(engine, self._seats_at(engine, at_s), at_s)

    def _seat_s(self, engine: int, last: EngineOccupancy, at_s: float) -> float:
        taken = min(last.load, self._capacities[engine])
        return last.seat_s + taken * max(0.0, at_s - last.at_s)

    def _seats_at(self, engine: int, at_s: float) -> EngineOccupancy:
        seats = self.seats[engine]
        return seats[max(1, bisect_right(seats, at_s, key=at_of)) - 1]
