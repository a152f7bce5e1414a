"""Hands each scheduler command to the component that executes it, and keeps routes current."""

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from gyre.controller.cells.transitions import RoleTransitions
from gyre.controller.executions.group_executions import GroupExecutions
from gyre.controller.executions.held_out_eval import HeldOutEval
from gyre.controller.recovered_state import RecoveredGroup
from gyre.controller.routes import ChangeTrackingDict, RouteTables
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    Command,
    EnterTraining,
    EvaluationMove,
    LaunchEvaluation,
    LaunchExecution,
    LeaveTraining,
    LoadWeights,
    Move,
    MoveExecutions,
    OfferGroup,
    OpenBatch,
    Publish,
    RestartCell,
    StopRun,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import EngineId, ExecutionId, GroupId
from gyre.types.run_events import ExecutionRelaunched


class CommandExecutor:
    """Has scheduler commands executed by the controller's components; it decides nothing."""

    def __init__(
        self,
        loop: RunLoop,
        scheduler: Scheduler,
        attempts: GroupExecutions,
        coordinator: TrainingCoordinator,
        transitions: RoleTransitions,
        routes: RouteTables,
        evaluations: HeldOutEval | None,
    ) -> None:
        """`evaluations` is None where nothing is held out."""
        self._loop = loop
        self._scheduler = scheduler
        self._attempts = attempts
        self._coordinator = coordinator
        self._transitions = transitions
        self._routes = routes
        self._evaluations = evaluations
        self._assignments = ChangeTrackingDict[tuple[GroupId, int], EngineId]()
        """Of launched members, until their group is offered."""
        self._num_turns = 0
        """Of engines, when routes followed them last."""

    def recall(self, groups: Iterable[RecoveredGroup]) -> None:
        """Engines of what an earlier controller launched, in groups that are not ready."""
        for group in groups:
            number = group.admitted.group
            for member, engine in group.running:
                self._assignments[number, member] = engine

    def noticed(self, now: float, fact: Any) -> None:
        """A fact is in the journal; the components that act because of it do so."""
        self._attempts.noticed(now, fact)
        if self._evaluations is not None:
            self._evaluations.noticed(now, fact)
        if isinstance(fact, ExecutionRelaunched):
            # No event follows from it, and its calls need a route under the new name.
            self.execute(())

    def execute(self, commands: Sequence[Command]) -> None:
        """Called after every event, also when it led to no order: engines may be ready since."""
        for command in commands:
            self._execute(command)
        self._follow()

    def _follow(self) -> None:
        """Routes follow what has changed; what has not costs nothing, however much there is."""
        engines = self._scheduler.engines
        turned = engines.num_turns != self._num_turns
        self._num_turns = engines.num_turns
        self._routes.want(
            self._changed(),
            lambda engine: engines.is_ready(EngineId(engine)),
            turned=turned,
        )

    def _changed(self) -> dict[ExecutionId, EngineId | None]:
        """Engines of executions that have begun, moved or ended since; None for one that ended."""
        running = self._attempts.running
        moved = (self._attempts.name_at(*place) for place in self._assignments.changed())
        found: dict[ExecutionId, EngineId | None] = {}
        for name in (
            *running.changed(),
            *(execution for execution in moved if execution is not None),
        ):
            place = running.get(name)
            found[name] = None if place is None else self._assignments[place]
        if self._evaluations is not None:
            assignments = self._evaluations.assignments
            found |= {name: assignments.get(name) for name in assignments.changed()}
        return found

    def _execute(self, command: Command) -> None:
        match command:
            case AdmitGroup(group=group, version=version, size=size):
                self._coordinator.admit(group, version=version, size=size)
                self._attempts.admit(command)
            case LaunchExecution(group=group, member=member, engine=engine):
                self._assignments[group, member] = engine
                self._attempts.launch(command)
            case CancelExecution():
                self._attempts.cancel(command)
            case MoveExecutions(moves=moves, evaluations=evaluations):
                self._move(moves, evaluations)
            case OfferGroup(group=group):
                size = self._scheduler.shape.group_size
                self._coordinator.offer(command, self._attempts.take(group, size))
                for member in range(size):
                    self._assignments.pop((group, member), None)
            case OpenBatch(step=step):
                self._coordinator.open(step)
            case StopRun(reason=reason):
                self._loop.stop(reason)
            case LaunchEvaluation():
                assert self._evaluations is not None
                self._evaluations.launch(command)
            case _:
                self._execute_for_cell(command)

    def _execute_for_cell(
        self, command: EnterTraining | LeaveTraining | Publish | LoadWeights | RestartCell
    ) -> None:
        transitions = self._transitions
        match command:
            case EnterTraining():
                self._move(command.moves, command.evaluations)
                transitions.ordered(command)
                self._loop.spawn(transitions.enter(command))
            case LeaveTraining():
                transitions.ordered(command)
                self._loop.spawn(transitions.leave(command))
            case Publish():
                self._loop.spawn(transitions.publish(command))
            case LoadWeights():
                self._loop.spawn(transitions.load(command))
            case RestartCell(cell=cell):
                self._loop.spawn(transitions.revive(cell))
            case _:
                assert_never(command)

    def _move(self, moves: Sequence[Move], evaluations: Sequence[EvaluationMove]) -> None:
        for move in moves:
            self._assignments[move.group, move.member] = move.engine
        if self._evaluations is not None:
            self._evaluations.move(evaluations)
