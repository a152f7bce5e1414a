"""Cells and engines over time."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gyre.scheduler.cells import CellState
from gyre.scheduler.scheduler import Scheduler
from gyre.scheduler.staleness import Identity
from gyre.types.ids import CORE, CellId, EngineId
from gyre.types.outcomes import Ending
from gyre.types.run_events import ClaimTrained, StepMade, TransitionTimed


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpan:
    """A cell in one state."""

    start_s: float
    end_s: float
    state: CellState


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandLevel:
    """Demand and capacity at one time."""

    at_s: float
    waterlevel: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One update."""

    number: int
    """From 1; the version it led to."""
    at_s: float
    took_s: float
    """Since the step before, or since the start."""
    staleness: float
    """Mean over its groups."""
    num_training: int
    """Cells in training when it was taken."""
    identity: Identity
    made: StepMade | None
    """None in a journal without run events."""

    @property
    def reward(self) -> float | None:
        return None if self.made is None else self.made.reward


@dataclass(slots=True)
class Tally:
    """Counts of a run: transitions, endings, claims."""

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
    endings: Counter[Ending] = field(default_factory=Counter)
    claims: Counter[int] = field(default_factory=Counter)
    """In updates, by cell."""
    claim_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds spent on them, by cell."""
    trajectories: int = 0
    tokens: int = 0
    """Of packs that updates were made of."""
    row_tokens: int = 0
    """What the same trajectories one by one would have had."""
    targets: int = 0


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


class CellHistory:
    """States and load over time of every cell and its engine, then of standalone engines."""

    def __init__(self, scheduler: Scheduler) -> None:
        shape = scheduler.shape
        self._scheduler = scheduler
        self.num_cells = shape.num_cells
        self.capacities = [shape.cell_capacity] * shape.num_cells + [*shape.standalone_capacities]
        self.changes: list[list[CellStateChange]] = [
            [CellStateChange(0.0, self._state(engine))] for engine in range(len(self.capacities))
        ]
        self.seats: list[list[EngineOccupancy]] = [
            [EngineOccupancy(0.0, 0, 0.0)] for _ in self.capacities
        ]
        self.busy = [Intervals() for _ in range(shape.num_cells)]
        """Claims and updates."""
        self.weights = [Intervals() for _ in range(shape.num_cells)]
        """Weights pulled or loaded between roles."""
        self.transitions: list[TimedTransition] = []
        self._seen: set[tuple[object, ...]] = set()

    def _state(self, engine: int) -> CellState:
        """A standalone engine serves, or is fenced."""
        if engine < self.num_cells:
            return self._scheduler.cells.state(CellId(engine))
        is_ready = self._scheduler.engines.is_ready(EngineId(engine))
        return CellState.SERVING if is_ready else CellState.FENCED

    def note(self, now: float) -> None:
        """States and loads may have changed."""
        engines = self._scheduler.engines
        for engine, (changes, seats) in enumerate(zip(self.changes, self.seats, strict=True)):
            state = self._state(engine)
            if state is not changes[-1].state:
                if changes[-1].at_s == now and len(changes) > 1:
                    changes.pop()
                if state is not changes[-1].state:
                    changes.append(CellStateChange(now, state))
            load = engines.load(EngineId(engine))
            if load != (last := seats[-1]).load:
                if last.at_s == now:
                    seats[-1] = EngineOccupancy(now, load, last.seat_s)
                else:
                    taken = min(last.load, self.capacities[engine])
                    seats.append(
                        EngineOccupancy(now, load, last.seat_s + taken * (now - last.at_s))
                    )

    def record_fact(self, now: float, fact: object) -> None:
        match fact:
            case ClaimTrained(step=step, claim=claim, cell=cell, seconds=seconds):
                if 0 <= cell < self.num_cells and self._is_new("claim", step, claim, cell):
                    self.busy[cell].add(now - seconds, now)
            case StepMade(step=step, reduce_s=reduce_s, step_s=step_s):
                if self._is_new("step", step):
                    self.busy[CORE].add(now - reduce_s - step_s, now)
            case TransitionTimed(cell=cell, transition=transition):
                if 0 <= cell < self.num_cells and self._is_new("transition", transition):
                    self._timed(now, fact)
            case _:
                pass

    def _timed(self, now: float, fact: TransitionTimed) -> None:
        """Its phases follow each other, and the last one ends now."""
        self.transitions.append(TimedTransition(now, fact))
        begin_s = now - sum(fact.phases.values())
        for phase, seconds in fact.phases.items():
            if phase in WEIGHT_PHASES:
                self.weights[fact.cell].add(begin_s, begin_s + seconds)
            begin_s += seconds

    def _is_new(self, *what: object) -> bool:
        is_new = what not in self._seen
        self._seen.add(what)
        return is_new

    # What is asked

    def spans(self, engine: int, since_s: float, until_s: float) -> Iterator[CellSpan]:
        """States of a window without gaps."""
        changes = self.changes[engine]
        first = max(0, bisect_right(changes, since_s, key=_at) - 1)
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
        return changes[max(1, bisect_right(changes, at_s, key=_at)) - 1]

    def load_at(self, engine: int, at_s: float) -> int:
        return self._seats_at(engine, at_s).load

    def seat_s(self, engine: int, at_s: float) -> float:
        """Sum of executions, up to its capacity, over all time before."""
        last = self._seats_at(engine, at_s)
        taken = min(last.load, self.capacities[engine])
        return last.seat_s + taken * max(0.0, at_s - last.at_s)

    def _seats_at(self, engine: int, at_s: float) -> EngineOccupancy:
        seats = self.seats[engine]
        return seats[max(1, bisect_right(seats, at_s, key=_at)) - 1]


def _at(row: CellStateChange | EngineOccupancy) -> float:
    return row.at_s
