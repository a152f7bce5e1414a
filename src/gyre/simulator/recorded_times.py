"""How long things took in a recorded run, from its events and the orders they answer.

Rule 1: training is timed where a ready group waited to be pulled, because then no cell was idle:
cells together take one group's claims from the queue between two pulls.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    AdmitGroup,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    Command,
    EngineLost,
    EnterTraining,
    Event,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LaunchExecution,
    LeaveTraining,
    OfferGroup,
    OpenBatch,
    Publish,
    Published,
    RestartCell,
    StepTaken,
    TransitionFailed,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import CORE, GroupId
from gyre.types.outcomes import Ending, Outcome


@dataclass(slots=True)
class RecordedExecution:
    """One execution as far as it is recorded."""

    launched_s: float | None = None
    ended_s: float | None = None
    ending: Ending | None = None
    closed_s: float | None = None
    outcome: Outcome | None = None

    @property
    def ran_s(self) -> float | None:
        """From launch to its end, where that was its own; nothing if it could not launch."""
        if self.launched_s is None and self.ending is Ending.NEVER_STARTED:
            return 0.0
        if self.launched_s is None or self.ended_s is None or self.ending is Ending.CANCELLED:
            return None
        return self.ended_s - self.launched_s

    @property
    def evaluation_s(self) -> float | None:
        if self.ended_s is None or self.closed_s is None:
            return None
        return self.closed_s - self.ended_s

    def open_s(self, end_s: float) -> float | None:
        """How long one that has not ended by itself had run when it was last seen."""
        if self.launched_s is None:
            return None
        return (end_s if self.ended_s is None else self.ended_s) - self.launched_s


@dataclass(slots=True)
class CommandDurations:
    """Seconds of each time that something was ordered and done."""

    core_enters: list[float] = field(default_factory=list)
    satellite_enters: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    publications: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pull:
    group: GroupId
    at_s: float
    cell_s: float
    """Time that all cells together had been in training by then."""
    num_cells: int
    offered_s: float
    is_void: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTail:
    """The end of a step, from the last group that was pulled to the update."""

    took_s: float
    num_cells: int
    num_claims: int
    """What had at least to be done, in claims of one execution each."""


class RecordedTimes:
    """What was seen of a run."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self._shape = shape
        self._scheduler = Scheduler(shape)
        self.executions: dict[GroupId, list[RecordedExecution]] = {}
        self.estimates_s: dict[GroupId, float] = {}
        self.void: dict[GroupId, bool] = {}
        """Of groups that became ready, whether they were void."""
        self.spent = CommandDurations()
        self.num_transitions = 0
        self.num_failed = 0
        self.num_deaths = 0
        self.num_lost = 0
        self.num_steps = 0
        self.end_s = 0.0
        self.training_cell_s = 0.0
        """Of cells that were never idle while they trained `groups_timed`."""
        self.groups_timed = 0.0
        self.tails: list[StepTail] = []
        self._ordered: dict[object, float] = {}
        self._offered_s: dict[GroupId, float] = {}
        self._pulls: list[_Pull] = []
        self._cell_s = 0.0
        self._num_training = self._count_training()

    def hear(self, event: Event, now: float) -> None:
        self._cell_s += self._num_training * (now - self.end_s)
        self.end_s = now
        orders = self._scheduler.handle(event, now)
        self._note(event, now)
        for order in orders:
            self._note_order(order, now)
        self._num_training = self._count_training()

    def _count_training(self) -> int:
        cells = self._scheduler.cells
        return sum(cells.state(cell) is CellState.TRAINING for cell in cells)

    def _note(self, event: Event, now: float) -> None:
        match event:
            case GroupAdmitted(group=group, estimate_s=estimate_s):
                if estimate_s is not None:
                    self.estimates_s[group] = estimate_s
            case ExecutionTerminated(group=group, member=member):
                one = self.executions[group][member]
                if one.ended_s is None:
                    one.ended_s, one.ending = now, event.ending
            case ExecutionClosed(group=group, member=member):
                one = self.executions[group][member]
                if one.closed_s is None:
                    one.closed_s, one.outcome = now, event.outcome
            case GroupAssigned(group=group):
                self._pull(group, now)
            case StepTaken(step=step) if step == self.num_steps:
                self._step(now)
            case CellTraining(cell=cell, transition=transition):
                into = self.spent.core_enters if cell == CORE else self.spent.satellite_enters
                self._done((EnterTraining, transition), now, into)
            case CellServing(transition=transition):
                self._done((LeaveTraining, transition), now, self.spent.leaves)
            case TransitionFailed():
                self.num_failed += 1
            case Published(version=version):
                self._done((Publish, version), now, self.spent.publications)
            case CellDied():
                self.num_deaths += 1
            case CellRecovered(cell=cell):
                self._done((RestartCell, cell), now, self.spent.restarts)
            case EngineLost():
                self.num_lost += 1
            case _:
                pass

    def _note_order(self, order: Command, now: float) -> None:
        match order:
            case AdmitGroup(group=group, size=size):
                self.executions[group] = [RecordedExecution() for _ in range(size)]
            case LaunchExecution(group=group, member=member):
                self.executions[group][member].launched_s = now
            case OfferGroup(group=group, is_void=is_void):
                self._offered_s[group] = now
                self.void[group] = is_void
            case EnterTraining(transition=transition):
                self.num_transitions += 1
                self._ordered[EnterTraining, transition] = now
            case LeaveTraining(transition=transition):
                self.num_transitions += 1
                self._ordered[LeaveTraining, transition] = now
            case Publish(version=version):
                self._ordered[Publish, version] = now
            case RestartCell(cell=cell):
                self._ordered[RestartCell, cell] = now
            case OpenBatch():
                self._pulls.clear()
            case _:
                pass

    def _done(self, order: object, now: float, spent: list[float]) -> None:
        ordered_s = self._ordered.pop(order, None)
        if ordered_s is not None:
            spent.append(now - ordered_s)

    def _pull(self, group: GroupId, now: float) -> None:
        if group in self._offered_s:
            offered_s = self._offered_s.pop(group)
            self._pulls.append(
                _Pull(
                    group=group,
                    at_s=now,
                    cell_s=self._cell_s,
                    num_cells=self._num_training,
                    offered_s=offered_s,
                    is_void=self.void[group],
                )
            )

    def _step(self, now: float) -> None:
        self.num_steps += 1
        pulls = [pull for pull in self._pulls if not pull.is_void]
        if not pulls or self._num_training == 0:
            return
        self._time_training(pulls)
        cells, size = self._num_training, self._shape.executions_per_group
        last = pulls[-1]
        waited = last.offered_s < last.at_s
        # It was pulled when a cell had just begun a claim and left one fewer than there are cells,
        # or into an empty queue.
        claims = size + cells if waited else ceil(size / cells) * cells
        self.tails.append(StepTail(took_s=now - last.at_s, num_cells=cells, num_claims=claims))

    def _time_training(self, pulls: list[_Pull]) -> None:
        """Sums stretches in which each group had been ready when the one before it was pulled.

        The first gap of a step is left out, because the queue is being filled in it.
        """
        is_filled = False
        for before, after in pairwise(pulls):
            if is_filled and after.offered_s <= before.at_s:
                self.training_cell_s += after.cell_s - before.cell_s
                # A cell that joins has the next group pulled while one claim more is left.
                joined = after.num_cells - before.num_cells
                self.groups_timed += 1 - joined / self._shape.executions_per_group
            is_filled = is_filled or after.at_s > before.at_s
            if after.offered_s > before.at_s:
                is_filled = False


def times(shape: SchedulerConfig, events: Iterable[tuple[float, Event]]) -> RecordedTimes:
    """Of a whole run."""
    found = RecordedTimes(shape)
    for now, event in events:
        found.hear(event, now)
    return found
