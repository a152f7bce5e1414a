"""A recorded run as a scenario: the same work and costs, to be met by another schedule.

Rule 1: training is timed where a ready group waited to be pulled, because then no cell was idle:
cells together take one group's claims from the queue between two pulls.

What is taken over: how long each execution ran, by group and member; the mean and the spread of
evaluations, and how many did not end; what training a group, switches, pulls and publications
took; how often transitions failed and cells died.
What is not: which evaluation took how long, which groups were void, and how an execution's time
depends on the load of its engine. So a run that is simulated again differs a little.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf, log, sqrt
from statistics import fmean, median, stdev
from typing import Any, assert_never

from gyre.journal.journal import Header, JournalContents
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SCHEDULE_FIELDS, SchedulerConfig
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
from gyre.scheduler.policies import Boundary, Continuous
from gyre.scheduler.replay import EVENTS, plain_shape, shape_of
from gyre.scheduler.scheduler import Scheduler
from gyre.simulator.scenario import Scenario, scenario_of
from gyre.simulator.workload import HOUR_S
from gyre.types.errors import ConfigError, InternalError
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
    """Collects from a journal's events what a simulation needs: executions, durations, deaths."""

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

    def record(self, event: Event, now: float) -> None:
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
        found.record(event, now)
    return found


_LEAST_S = 1e-6
"""Training takes some time, or its rate would have no number."""
_SPREAD = (sqrt(5) - 1) / 2
"""Multiples of it, without their whole part, are spread evenly over 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What a journal says of a run's work and costs."""

    tables: dict[str, Any] = field(repr=False)
    """As a scenario file has them, so that a change of one is a change of a key."""
    num_ended: int
    """Executions whose time was recorded whole."""
    num_open: int
    """Executions that still ran at the end or were cancelled; each is given the time of one that
    ran longer."""
    num_queued: int
    """Executions admitted and never launched; each is given the time of another."""
    notes: tuple[str, ...]
    """What a reader should know of the numbers, a sentence each."""

    @property
    def scenario(self) -> Scenario:
        return scenario_of(self.tables)


def header_of(scenario: Scenario, *, started_at: float) -> Header:
    """For the journal of a simulated run."""
    return Header(
        run=scenario.name,
        seed=scenario.seed,
        started_at=started_at,
        shape=plain_shape(scenario.shape),
        notes={"simulated": True, "nodes_per_cell": scenario.nodes_per_cell},
    )


def recorded(reading: JournalContents) -> RecordedRun:
    """The run of a journal; raises ConfigError where it is too short to say anything."""
    header = reading.header
    if header is None:
        raise ConfigError(f"{reading.path}: ends before its header; nothing is recorded")
    shape = shape_of(header.shape)
    try:
        found = times(shape, reading.facts(EVENTS))
    except InternalError as error:
        raise ConfigError(f"{reading.path}: its events make no run: {error}") from error
    steps = found.num_steps // shape.steps_per_burst * shape.steps_per_burst
    if steps == 0:
        raise ConfigError(f"{reading.path}: ends within its first burst; nothing to simulate")
    work = _Work(found)
    nodes = _nodes_per_cell(reading.path.name, header)
    tables = {
        "name": header.run,
        "seed": header.seed,
        "schedule": _schedule(shape, steps),
        "cells": {
            "count": shape.num_cells,
            "capacity": shape.cell_capacity,
            "nodes": nodes,
            "standalone": list(shape.standalone_capacities),
        },
        **work.tables(),
        "costs": _costs(found, nodes=nodes, group_size=shape.executions_per_group),
        "faults": _faults(found, shape),
    }
    return RecordedRun(
        tables=tables,
        num_ended=work.num_ended,
        num_open=work.num_open,
        num_queued=work.num_queued,
        notes=tuple(_notes(reading, shape, found, work)),
    )


def _nodes_per_cell(where: str, header: Header) -> float:
    """As the journal notes it; a cell without a note counts as one node."""
    found = header.notes.get("nodes_per_cell", 1)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < inf:
        raise ConfigError(f"{where}: nodes_per_cell: a number above 0, not {found!r}")
    return found


class _Work:
    """Durations by group, those that are missing completed, and what evaluations were like."""

    def __init__(self, found: RecordedTimes) -> None:
        self._end_s = found.end_s
        self._void = found.void
        self._groups = found.executions
        self._estimates_s = found.estimates_s
        every = [one for group in found.executions.values() for one in group]
        self._ended_s = sorted(one.ran_s for one in every if one.ran_s is not None)
        self.num_ended = len(self._ended_s)
        missing = [one for one in every if one.ran_s is None]
        self.num_queued = sum(one.launched_s is None for one in missing)
        self.num_open = len(missing) - self.num_queued
        open_s = [one.open_s(found.end_s) or 0.0 for one in missing]
        self._longest_s = max([*self._ended_s, *open_s])
        self._num_completed = 0

    def tables(self) -> dict[str, Any]:
        harness_s = self._longest_s
        hours = [[self._hours(one) for one in group] for group in self._groups.values()]
        whole_s = [
            one.ran_s + one.evaluation_s
            for group in self._groups.values()
            for one in group
            if one.ran_s is not None and one.evaluation_s is not None
        ]
        found: dict[str, Any] = {
            "work": {"recorded_h": hours},
            "deadlines": {
                "harness_h": harness_s / HOUR_S,
                "overall_h": max([harness_s, *whole_s]) / HOUR_S,
            },
            "evaluations": self._evaluations(),
            "failures": {"void": fmean(self._void.values())},
        }
        if self._estimates_s:
            found["estimates"] = {"sigma": self._estimate_error()}
        return found

    def _hours(self, one: RecordedExecution) -> float:
        if one.ran_s is None:
            return self._completed_s(one.open_s(self._end_s) or 0.0) / HOUR_S
        if one.ending is Ending.TIMED_OUT and one.ran_s >= 0.999 * self._longest_s:
            # Just beyond the deadline, so that it is one again.
            return one.ran_s / HOUR_S * 1.01
        return one.ran_s / HOUR_S

    def _completed_s(self, open_s: float) -> float:
        """The time of one that ran longer, another for each that asks."""
        longer = self._ended_s[bisect_right(self._ended_s, open_s) :]
        self._num_completed += 1
        if not longer:
            return open_s
        return longer[int(self._num_completed * _SPREAD % 1 * len(longer))]

    def _evaluations(self) -> dict[str, float]:
        sound = [group for number, group in self._groups.items() if not self._is_void(number)]
        seconds = [
            one.evaluation_s
            for group in sound
            for one in group
            if one.outcome is Outcome.VALID and one.evaluation_s is not None
        ]
        logs = [log(one) for one in seconds if one > 0]
        found = {
            "mean_h": fmean(seconds) / HOUR_S if seconds else 0.0,
            "sigma": stdev(logs) if len(logs) > 1 else 0.0,
        }
        closed = [[one.outcome for one in group if one.outcome is not None] for group in sound]
        hard = [outcomes for outcomes in closed if Outcome.EXCLUDED in outcomes]
        if hard:
            found["stuck_queries"] = len(hard) / sum(map(bool, closed))
            found["stuck_within"] = fmean(
                outcome is Outcome.EXCLUDED for outcomes in hard for outcome in outcomes
            )
        return found

    def _is_void(self, number: GroupId) -> bool:
        return number in self._void and self._void[number]

    def _estimate_error(self) -> float:
        """Of the logarithm of estimates, over groups that ended whole."""
        errors = []
        for number, estimate_s in self._estimates_s.items():
            ran_s = [one.ran_s for one in self._groups[number] if one.ran_s]
            if len(ran_s) == len(self._groups[number]) and estimate_s > 0:
                errors.append(log(estimate_s / median(ran_s)))
        return stdev(errors) if len(errors) > 1 else 0.0


def _costs(found: RecordedTimes, *, nodes: float, group_size: int) -> dict[str, float]:
    spent = found.spent
    into_s = _typical(spent.core_enters or spent.satellite_enters)
    group_s = _group_s(found, group_size)
    claim_s = group_s / group_size
    update_s = min(
        (tail.took_s - tail.num_claims * claim_s / tail.num_cells for tail in found.tails),
        default=0.0,
    )
    return {
        "groups_per_node_hour": HOUR_S / (group_s * nodes),
        "into_training_s": into_s,
        "out_of_training_s": _typical(spent.leaves),
        "pull_s": max(0.0, _typical(spent.satellite_enters) - into_s),
        "update_s": max(0.0, update_s),
        "publication_s": _typical(spent.publications),
    }


def _group_s(found: RecordedTimes, group_size: int) -> float:
    """Of one cell that trains one group; from the ends of steps where no group ever waited."""
    if found.groups_timed > 0:
        return max(_LEAST_S, found.training_cell_s / found.groups_timed)
    bounds = (tail.took_s * tail.num_cells * group_size / tail.num_claims for tail in found.tails)
    return max(_LEAST_S, min(bounds, default=_LEAST_S))


def _typical(seconds: Sequence[float]) -> float:
    return median(seconds) if seconds else 0.0


def _faults(found: RecordedTimes, shape: SchedulerConfig) -> dict[str, float]:
    faults = {}
    if found.num_failed:
        faults["failed_transitions"] = found.num_failed / (found.num_transitions + 1)
    if found.num_deaths:
        faults["mean_life_h"] = shape.num_cells * found.end_s / found.num_deaths / HOUR_S
        if found.spent.restarts:
            faults["restart_s"] = _typical(found.spent.restarts)
    return faults


def _notes(
    reading: JournalContents, shape: SchedulerConfig, found: RecordedTimes, work: _Work
) -> Iterator[str]:
    if reading.torn_bytes:
        yield f"the journal's last {reading.torn_bytes} bytes are torn and were left out"
    if reading.num_unknown:
        yield f"{reading.num_unknown} facts of kinds that this Gyre does not know were skipped"
    if work.num_open:
        yield (
            f"{work.num_open} executions were cut short, by the end or as surplus; "
            "each is given the time of one that ran longer"
        )
    if work.num_queued:
        yield f"{work.num_queued} executions never launched; each is given the time of another"
    if found.groups_timed <= 0:
        yield "no ready group ever waited for long, so training is timed by the ends of steps alone"
    if not found.spent.core_enters and not found.spent.satellite_enters:
        yield "no cell changed its role, so switches and pulls are taken to cost nothing"
    if shape.placement.pauses:
        yield "executions stood still while cells trained, and that time counts as theirs"
    if shape.evaluation_slots:
        yield "held-out evaluations are left out, and what they held is free"
    if found.num_lost:
        yield f"{found.num_lost} engines were lost for a while; the simulation loses none"


def _schedule(shape: SchedulerConfig, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(shape, name) for name in SCHEDULE_FIELDS}
    found["steps"] = steps
    match shape.dispatch:
        case Boundary(extra_dispatch=extra):
            found["extra_dispatch"] = extra
        case Continuous(depth=depth):
            found["depth"] = depth
        case _:
            assert_never(shape.dispatch)
    plain = plain_shape(shape)
    found["placement"] = plain["placement"]["kind"]
    found["streaming"] = shape.placement.streaming
    found["launch_order"] = plain["launch_order"]["kind"]
    return found
