"""The run in virtual time: takes simulated events, asks the scheduler, executes its commands.

Rule 1: the scheduler is the live run's own; the world decides nothing but how long things take.
Rule 2: the same scenario gives the same record.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, isfinite
from statistics import median
from typing import assert_never

import numpy as np

from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    Command,
    EngineReturned,
    EnterTraining,
    Event,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LaunchEvaluation,
    LaunchExecution,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    MoveExecutions,
    OfferGroup,
    OpenBatch,
    Publish,
    Published,
    RestartCell,
    RunStarted,
    StepTaken,
    StopRun,
    TimerFired,
    TransitionFailed,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.simulator.engines import EventQueue, Key, RunningExecution, SimulatedEngines
from gyre.simulator.recorder import SimulationRecorder
from gyre.simulator.result import SimulationResult
from gyre.simulator.scenario import Scenario
from gyre.simulator.training import SimulatedTrainer
from gyre.simulator.workload import HOUR_S, SimulatedExecution, WorkloadDraws
from gyre.types.errors import ConfigError, InternalError
from gyre.types.ids import CORE, CellId, EngineId, GroupId
from gyre.types.outcomes import Ending, Outcome

_ESTIMATES, _FAULTS = 101, 102
"""Number the streams of chance, apart from the workload's own."""


@dataclass(slots=True)
class EventLog:
    """All events that a scheduler handled and its commands, for a replay."""

    entries: list[tuple[float, Event, tuple[Command, ...]]] = field(default_factory=list)


MOST_DEATHS = 200
"""Of each cell without a step; a run that has more makes no headway, and would never end."""


def run(scenario: Scenario, *, log: EventLog | None = None) -> SimulationResult:
    """The whole run, to its last publication."""
    return World(scenario, log=log).run()


class World:
    """One simulated run: engines, trainer, workload and the scheduler in virtual time."""

    def __init__(self, scenario: Scenario, *, log: EventLog | None = None) -> None:
        self._scenario = scenario
        self._log = log
        self._agenda = EventQueue()
        self._scheduler = Scheduler(scenario.shape)
        self._inbox: deque[Event] = deque()
        """Events of this moment that the scheduler has not handled yet."""
        self._books = SimulationRecorder(scenario, self._scheduler)
        self._trainer = SimulatedTrainer(self._agenda, scenario, self._inbox)
        shape = scenario.shape
        self._num_engines = shape.num_cells + len(shape.standalone_capacities)
        self._serving = SimulatedEngines(
            self._agenda,
            [scenario.capacity(EngineId(engine)) for engine in range(self._num_engines)],
            decode=scenario.workload.decode,
            deadlines=scenario.workload.deadlines,
            listener=self,
        )
        self._draws = WorkloadDraws(
            scenario.workload, seed=scenario.seed, group_size=shape.group_size
        )
        self._drawn: dict[GroupId, tuple[SimulatedExecution, ...]] = {}
        self._evaluating: set[Key] = set()
        self._chance = np.random.default_rng([scenario.seed, 0, _FAULTS])
        self._transition: dict[CellId, int] = {}
        self._lives = [0] * shape.num_cells
        """Numbers each cell's lives, because a death is planned for one of them."""
        self._num_deaths = 0
        """Since the last step."""
        self._published = 0
        self._consumed: dict[GroupId, bool] = {}
        """Groups of the batch in hand; True for void ones."""
        self._void: set[GroupId] = set()
        self._wakes_s: float | None = None
        self._is_over = False

    def run(self) -> SimulationResult:
        if not self._scenario.cells_serve:
            for cell in self._scheduler.cells:
                self._trainer.join(cell)
        for cell in self._scheduler.cells:
            self._plan_death(cell)
        self._handle(RunStarted())
        while not self._is_over:
            if self._inbox:
                self._handle(self._inbox.popleft())
            elif len(self._agenda):
                action = self._agenda.take()
                self._books.pass_to(self._agenda.now)
                action()
            else:
                break
        self._books.counts["claims_done"] = self._trainer.num_done
        self._books.counts["claims_returned"] = self._trainer.num_returned
        return self._books.record(
            stopped=self._scheduler.stopped,
            busy_s=self._trainer.busy_until(self._agenda.now),
        )

    # Events

    def _handle(self, event: Event) -> None:
        now = self._agenda.now
        commands = self._scheduler.handle(event, now)
        if self._log is not None:
            self._log.entries.append((now, event, tuple(commands)))
        self._books.counts["events"] += 1
        self._books.counts["commands"] += len(commands)
        self._note(event)
        for command in commands:
            self._execute(command)
        self._books.note_level()
        self._plan_wake()

    def _note(self, event: Event) -> None:
        """Writes down what the scheduler has just taken in."""
        match event:
            case CellTraining(cell=cell) | CellServing(cell=cell) | TransitionFailed(cell=cell):
                self._books.note_cell(cell)
            case CellDied(cell=cell) | CellRecovered(cell=cell):
                self._books.note_cell(cell)
            case EngineReturned(engine=engine) if engine < self._scenario.shape.num_cells:
                self._books.note_cell(CellId(engine))
            case GroupAssigned(group=group):
                self._consumed[group] = group in self._void
                self._void.discard(group)
            case StepTaken(step=step):
                consumed, self._consumed = self._consumed, {}
                self._num_deaths = 0
                self._books.step(
                    step,
                    consumed,
                    num_cells=self._trainer.num_cells_of_step,
                    busy_s=self._trainer.busy_s,
                )
            case Published(version=version):
                self._published = version
                self._trainer.forget(version)
                self._books.counts["publications"] += 1
                self._books.phases.publish(self._agenda.now)
                for cell in self._scheduler.cells:
                    self._books.note_cell(cell)
            case _:
                pass

    def _plan_wake(self) -> None:
        wake_s = self._scheduler.wake_at(self._agenda.now)
        if wake_s is not None and (self._wakes_s is None or wake_s < self._wakes_s):
            self._wakes_s = wake_s
            self._agenda.at(wake_s, partial(self._wake, wake_s))

    def _wake(self, planned_s: float) -> None:
        if self._wakes_s == planned_s:
            self._wakes_s = None
            self._inbox.append(TimerFired())

    # What is ordered

    def _execute(self, command: Command) -> None:
        match command:
            case AdmitGroup():
                self._admit(command)
            case LaunchExecution(group=group, member=member, engine=engine):
                self._serving.launch((group, member), self._drawn[group][member], engine)
            case CancelExecution(group=group, member=member):
                self._cancel((group, member))
            case MoveExecutions():
                self._move(command)
            case OfferGroup():
                self._offer(command)
            case EnterTraining():
                self._enter(command)
            case LeaveTraining():
                self._leave(command)
            case OpenBatch(step=step):
                self._books.phases.open(step, self._agenda.now)
                self._trainer.open(step)
            case Publish(version=version):
                event = Published(version=version)
                self._agenda.after(
                    self._scenario.costs.publication_s, partial(self._inbox.append, event)
                )
            case LoadWeights(engine=engine, version=version):
                if engine < self._scenario.shape.num_cells:
                    self._books.note_cell(CellId(engine))
                self._serving.strand(engine)
                loaded = EngineReturned(engine=engine, version=version)
                self._agenda.after(self._scenario.costs.pull_s, partial(self._inbox.append, loaded))
            case RestartCell(cell=cell):
                self._restart(cell)
            case StopRun():
                self._is_over = True
            case LaunchEvaluation():
                raise InternalError("an evaluation was launched that nobody asked for")
            case _:
                assert_never(command)

    # Executions

    def _admit(self, command: AdmitGroup) -> None:
        step = self._scheduler.burst.version + 1
        drawn = self._draws.group(command.group, step=step)
        self._drawn[command.group] = drawn
        self._trainer.admit(command.group, version=command.version, size=command.size)
        self._books.admit(command.group, command.version, drawn)
        estimate_s = self._estimate(command.group, drawn)
        self._inbox.append(GroupAdmitted(group=command.group, estimate_s=estimate_s))

    def _estimate(self, group: GroupId, drawn: Sequence[SimulatedExecution]) -> float | None:
        """Of the group's typical execution, by seed and group alone."""
        if self._scenario.estimates is None:
            return None
        normal = np.random.default_rng([self._scenario.seed, group, _ESTIMATES]).standard_normal()
        error = exp(self._scenario.estimates.sigma * float(normal))
        return median(execution.work_s for execution in drawn) * error

    # As engines report

    def ended(self, running: RunningExecution, charged_s: float, ending: Ending) -> None:
        group, member = running.key
        closing = running.drawn.closing(charged_s, self._scenario.workload.deadlines)
        self._books.counts["executions_timed_out"] += ending is Ending.TIMED_OUT
        self._evaluating.add(running.key)
        self._inbox.append(ExecutionTerminated(group=group, member=member, ending=ending))
        closed = partial(self._closed, running.key, closing.outcome)
        self._agenda.after(closing.evaluation_s, closed)

    def _closed(self, key: Key, outcome: Outcome) -> None:
        if key not in self._evaluating:
            return
        self._evaluating.remove(key)
        self._books.counts["executions_excluded"] += outcome is Outcome.EXCLUDED
        group, member = key
        self._inbox.append(ExecutionClosed(group=group, member=member, outcome=outcome))

    def _cancel(self, key: Key) -> None:
        group, member = key
        if self._serving.cancel(key):
            ending = Ending.CANCELLED
            self._inbox.append(ExecutionTerminated(group=group, member=member, ending=ending))
            self._evaluating.add(key)
        self._closed(key, Outcome.SURPLUS)

    def _move(self, command: MoveExecutions | EnterTraining) -> None:
        self._books.counts["executions_moved"] += len(command.moves)
        for move in command.moves:
            self._serving.move((move.group, move.member), move.engine)

    def _offer(self, command: OfferGroup) -> None:
        drawn = self._drawn.pop(command.group)
        for member, one in enumerate(drawn):
            is_kept = member in command.members and one.ending is not Ending.NEVER_STARTED
            self._trainer.close(command.group, member, one if is_kept else None)
        if command.is_void:
            self._void.add(command.group)
        self._books.phases.ready(command.group, self._agenda.now)
        self._trainer.offer(command)

    # Cells

    def _enter(self, command: EnterTraining) -> None:
        cell = command.cell
        self._books.note_cell(cell)
        self._books.counts["cells_entered"] += 1
        self._move(command)
        self._serving.strand(EngineId(cell))
        self._transition[cell] = command.transition
        self._agenda.after(
            self._scenario.costs.into_training_s, partial(self._switched, cell, command.transition)
        )

    def _switched(self, cell: CellId, transition: int) -> None:
        if self._transition.get(cell) != transition:
            return
        if self._fails():
            self._inbox.append(TransitionFailed(cell=cell, transition=transition))
        elif cell == CORE:
            self._joined(cell, transition)
        else:
            self._trainer.pull(cell, partial(self._joined, cell, transition))

    def _joined(self, cell: CellId, transition: int) -> None:
        if self._transition.get(cell) == transition:
            self._inbox.append(CellTraining(cell=cell, transition=transition))
            self._trainer.join(cell)

    def _leave(self, command: LeaveTraining) -> None:
        cell = command.cell
        self._books.counts["cells_turned_back"] += self._books.is_entering(cell)
        self._books.counts["rescues"] += command.reason is LeaveReason.RESCUE
        self._books.note_cell(cell)
        is_parked = cell == CORE and command.reason is LeaveReason.RESCUE
        self._trainer.leave(cell, parks=is_parked)
        self._transition[cell] = command.transition
        self._agenda.after(
            self._scenario.costs.out_of_training_s, partial(self._home, cell, command.transition)
        )

    def _home(self, cell: CellId, transition: int) -> None:
        if self._transition.get(cell) != transition:
            return
        if self._fails():
            self._inbox.append(TransitionFailed(cell=cell, transition=transition))
        else:
            self._inbox.append(CellServing(cell=cell, transition=transition))

    def _fails(self) -> bool:
        share = self._scenario.faults.failed_transitions
        failed = share > 0 and float(self._chance.random()) < share
        self._books.counts["transitions_failed"] += failed
        return failed

    def _plan_death(self, cell: CellId) -> None:
        mean_s = self._scenario.faults.mean_life_h * HOUR_S
        if isfinite(mean_s):
            life_s = float(self._chance.exponential(mean_s))
            self._agenda.after(life_s, partial(self._die, cell, self._lives[cell]))

    def _die(self, cell: CellId, life: int) -> None:
        if life != self._lives[cell]:
            return
        self._books.counts["cells_died"] += 1
        self._num_deaths += 1
        if self._num_deaths > MOST_DEATHS * len(self._lives):
            mean_h = self._scenario.faults.mean_life_h
            raise ConfigError(
                f"faults.mean_life_h: a longer life, not {mean_h:g}: cells died "
                f"{self._num_deaths} times and no step was taken"
            )
        self._transition.pop(cell, None)
        self._trainer.leave(cell)
        self._inbox.append(CellDied(cell=cell))

    def _restart(self, cell: CellId) -> None:
        """Of a cell that died, or was given up."""
        self._books.note_cell(cell)
        self._lives[cell] += 1
        self._transition.pop(cell, None)
        self._trainer.leave(cell)
        self._serving.strand(EngineId(cell))
        self._agenda.after(self._scenario.faults.restart_s, partial(self._recover, cell))

    def _recover(self, cell: CellId) -> None:
        self._inbox.append(CellRecovered(cell=cell, version=self._published))
        self._plan_death(cell)
