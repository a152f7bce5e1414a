"""Cells and engines of a story: who did what from when on, who sat where, and what claims took."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from gyre.observability.history.seen import CellSpan
from gyre.observability.history.stretches import Intervals
from gyre.scheduler.cells import CellState
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import CORE, CellId, EngineId
from gyre.types.run_events import ClaimTrained, StepMade, TransitionTimed

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
    """Sum over the time before: seats taken, as far as the engine is meant to have them."""


class TimedTransition(NamedTuple):
    """A transition that came to its end."""

    at_s: float
    fact: TransitionTimed


class CellHistory:
    """Every cell with its engine, then the standalone engines."""

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

    def told(self, now: float, fact: object) -> None:
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
        """Sum of seats taken over all time before."""
        last = self._seats_at(engine, at_s)
        taken = min(last.load, self.capacities[engine])
        return last.seat_s + taken * max(0.0, at_s - last.at_s)

    def _seats_at(self, engine: int, at_s: float) -> EngineOccupancy:
        seats = self.seats[engine]
        return seats[max(1, bisect_right(seats, at_s, key=_at)) - 1]


def _at(row: CellStateChange | EngineOccupancy) -> float:
    return row.at_s
