"""Executions of a run's groups: drawn, launched, closed with their rewards, and kept for training.

Rule 1: p, f and closure move once for every member of every group (SPEC 1.2).
Rule 2: what an earlier controller launched goes on; only what cannot is launched again, renamed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from gyre.batching.group_packer import ClosedExecution
from gyre.batching.task_sampler import TaskSampler
from gyre.controller.executions.supervisors import SupervisedExecution, Supervisors
from gyre.controller.recovered_state import ConsumedGroups, RecoveredGroup, RecoveredState
from gyre.controller.routes import ChangeTrackingDict
from gyre.controller.run_loop import RunLoop
from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LaunchExecution,
    StepTaken,
)
from gyre.types.errors import ConfigError
from gyre.types.ids import ExecutionId, GroupId
from gyre.types.outcomes import Closed, Ending, Outcome, Terminated
from gyre.types.places import TaskSource
from gyre.types.run_events import ExecutionRelaunched, GroupDrawn, RewardGiven
from gyre.types.tasks import Task


class ExecutionState(Enum):
    """Where a launched execution is between its launch and its closure."""

    RENAMED = auto()
    """It begins anew, once its new name is in the journal."""
    RUNNING = auto()
    TERMINATED = auto()
    """What it left is being assessed."""
    CLOSED = auto()


@dataclass(slots=True)
class GroupExecution:
    """One member of a group, from its launch until the group is taken."""

    place: tuple[GroupId, int]
    """Its group, and which member of it this is."""
    name: ExecutionId
    state: ExecutionState = ExecutionState.RUNNING
    is_surplus: bool = False
    """It was cancelled, however it ends (SPEC 6.5)."""
    is_rewarded: bool = False
    """An earlier controller recorded its reward, and not that it is closed."""
    closed: Closed | None = None

    def close(self, fact: Closed) -> None:
        self.state, self.closed = ExecutionState.CLOSED, fact


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """A group that is not ready yet: its task, and those of its executions that were launched."""

    position: int
    query: int
    task: Task
    executions: dict[int, GroupExecution] = field(default_factory=dict)
    """By member."""


class GroupExecutions:
    """Draws, launches and closes the executions of all groups that are not ready yet."""

    def __init__(
        self,
        loop: RunLoop,
        folder: Path,
        tasks: TaskSource,
        queries: TaskSampler,
        supervisors: Supervisors,
    ) -> None:
        self.supervisors = supervisors
        self.running = ChangeTrackingDict[ExecutionId, tuple[GroupId, int]]()
        """Those that are launched and not terminated."""
        self._loop = loop
        self._folder = folder
        self._tasks = tasks
        self._queries = queries
        self._groups: dict[GroupId, DrawnGroup] = {}
        self._by_name: dict[ExecutionId, GroupExecution] = {}
        """All executions of these groups."""
        self._ready: dict[GroupId, int] = {}
        """Queries of groups that are ready and not consumed."""
        self._assigned: set[GroupId] = set()
        """Those of them that the open batch has pulled."""

    def name_at(self, group: GroupId, member: int) -> ExecutionId | None:
        """None of a member that was never launched, or whose group has been taken."""
        execution = self._execution_at(group, member)
        return None if execution is None else execution.name

    def admit(self, command: AdmitGroup) -> None:
        """The next query is the group's."""
        position = self._queries.num_drawn
        query = self._queries.draw()
        self._groups[command.group] = drawn = DrawnGroup(position, query, self._tasks.get(query))
        self._record_drawn(command, drawn)
        self._loop.record(GroupAdmitted(group=command.group))

    def launch(self, command: LaunchExecution) -> None:
        place = command.group, command.member
        execution = self._add(GroupExecution(place, name_of(*place)))
        self.running[execution.name] = place
        self._start(execution)

    def cancel(self, command: CancelExecution) -> None:
        """A surplus execution ends unassessed."""
        group, member = command.group, command.member
        execution = self._execution_at(group, member)
        if execution is not None:
            execution.is_surplus = True
            if execution.state is not ExecutionState.RENAMED:
                self.supervisors.cancel(execution.name)
            return
        # Never launched: p and f move in one event (SPEC 1.2).
        ending, outcome = Ending.CANCELLED, Outcome.SURPLUS
        self._loop.record(ExecutionTerminated(group=group, member=member, ending=ending))
        self._loop.record(ExecutionClosed(group=group, member=member, outcome=outcome))

    def take(self, group: GroupId, size: int) -> dict[int, ClosedExecution | None]:
        """What a ready group's executions left, by member; nothing is kept of it here."""
        drawn = self._groups.pop(group)
        self._ready[group] = drawn.query
        for execution in drawn.executions.values():
            del self._by_name[execution.name]
            self.supervisors.forget(execution.name)
        kept = {
            member: _kept(execution.name, execution.closed)
            for member, execution in drawn.executions.items()
        }
        return {member: kept.get(member) for member in range(size)}

    def _consume(self, groups: Iterable[GroupId]) -> None:
        """Their queries may be drawn again (SPEC 1.1)."""
        for group in groups:
            self._queries.done(self._ready.pop(group))

    # After an earlier controller

    def recall(self, found: RecoveredState) -> dict[GroupId, dict[int, ClosedExecution | None]]:
        """Groups of its time; what those left that were offered. `resume` follows.

        Queries are drawn and come back in the order in which they did, because one that is out is
        passed over.
        """
        left: dict[GroupId, dict[int, ClosedExecution | None]] = {}
        covered: dict[GroupId, int] = {}
        for order in found.drawing:
            if isinstance(order, ConsumedGroups):
                self._consume(order.groups)
                continue
            group = found.groups.get(order.group)
            if isinstance(order, AdmitGroup):
                position = self._queries.num_drawn
                query = self._queries.draw()
                if group is None:
                    covered[order.group] = query
                else:
                    self._recall_group(group, position, query)
            elif group is None:
                self._ready[order.group] = covered.pop(order.group)
            else:
                left[order.group] = self.take(order.group, len(group.members))
        self._assigned.update(() if found.open is None else found.open[1].groups)
        return left

    def _recall_group(self, group: RecoveredGroup, position: int, query: int) -> None:
        number, task = group.admitted.group, self._tasks.get(query)
        if group.task not in (None, task.id):
            message = f"group {number} drew task {group.task}, and now that query is {task.id}"
            raise ConfigError(f"tasks: not those that the run began with: {message}")
        self._groups[number] = DrawnGroup(position, query, task)
        for member, recovered in enumerate(group.members):
            if recovered.engine is None:
                continue
            name = ExecutionId(recovered.name or name_of(number, member))
            execution = self._add(GroupExecution((number, member), name))
            execution.is_surplus = recovered.is_cancelled
            execution.is_rewarded = recovered.is_rewarded
            if recovered.is_terminated:
                execution.state = ExecutionState.TERMINATED
            if recovered.outcome is not None:
                outcome, score = recovered.outcome, recovered.score
                execution.close(Closed(outcome=outcome, score=score, reason=""))

    def resume(self, group: RecoveredGroup) -> None:
        """Executions that are not closed go on; a command without an answer is answered."""
        number = group.admitted.group
        drawn = self._groups[number]
        if not group.is_answered:
            if group.task is None:
                self._record_drawn(group.admitted, drawn)
            self._loop.record(GroupAdmitted(group=number))
            return
        for execution in drawn.executions.values():
            if execution.state is ExecutionState.CLOSED:
                continue
            if execution.state is ExecutionState.RUNNING:
                self.running[execution.name] = execution.place
            self.supervisors.adopt(
                execution.name,
                drawn.task,
                self._folder / execution.name,
                self,
                is_cancelled=execution.is_surplus,
                is_terminated=execution.state is ExecutionState.TERMINATED,
            )

    # After commands and facts

    def noticed(self, now: float, fact: Any) -> None:
        """A fact is in the journal, and what follows from it is done."""
        match fact:
            case ExecutionRelaunched(execution=name):
                # Only now, lest a name be used twice.
                self._start(self._by_name[ExecutionId(name)])
            case GroupAssigned(group=group) if group in self._ready:
                self._assigned.add(group)
            case StepTaken():
                self._consume(sorted(self._assigned))
                self._assigned.clear()
            case _:
                pass

    def _record_drawn(self, command: AdmitGroup, drawn: DrawnGroup) -> None:
        group, position, task = command.group, drawn.position, drawn.task.id
        names = tuple(name_of(group, member) for member in range(command.size))
        self._loop.record(GroupDrawn(group=group, position=position, task=task, executions=names))

    def _execution_at(self, group: GroupId, member: int) -> GroupExecution | None:
        drawn = self._groups.get(group)
        return None if drawn is None else drawn.executions.get(member)

    def _add(self, execution: GroupExecution) -> GroupExecution:
        group, member = execution.place
        self._groups[group].executions[member] = execution
        self._by_name[execution.name] = execution
        return execution

    def _start(self, execution: GroupExecution) -> None:
        execution.state = ExecutionState.RUNNING
        name, (group, _) = execution.name, execution.place
        self.supervisors.launch(name, self._groups[group].task, self._folder / name, self)
        if execution.is_surplus:
            self.supervisors.cancel(name)

    # As supervisors report

    async def terminated(self, supervised: SupervisedExecution, fact: Terminated) -> None:
        execution = self._by_name[supervised.name]
        execution.state = ExecutionState.TERMINATED
        del self.running[execution.name]
        group, member = execution.place
        self._loop.record(ExecutionTerminated(group=group, member=member, ending=fact.ending))

    async def closed(self, supervised: SupervisedExecution, fact: Closed) -> None:
        execution = self._by_name[supervised.name]
        if execution.is_surplus:
            # Its score may have come in the same moment; it is one more than the group has.
            fact = Closed(outcome=Outcome.SURPLUS, score=None, reason=fact.reason)
        execution.close(fact)
        group, member = execution.place
        ended = supervised.terminated
        if not execution.is_rewarded:
            self._loop.record(
                RewardGiven(
                    group=group,
                    member=member,
                    execution=execution.name,
                    score=fact.score,
                    ran_s=None if ended is None else ended.elapsed_s,
                    reason=fact.reason if fact.score is None else None,
                )
            )
        self._loop.record(ExecutionClosed(group=group, member=member, outcome=fact.outcome))

    def lost(self, supervised: SupervisedExecution, reason: str) -> None:
        """The same member again, under a name that has neither a log nor a folder."""
        before = self._by_name.pop(supervised.name)
        self.running.pop(before.name, None)
        execution = self._add(
            GroupExecution(before.place, next_name(before.name), ExecutionState.RENAMED)
        )
        execution.is_surplus = before.is_surplus
        self.running[execution.name] = group, member = execution.place
        self._loop.record(
            ExecutionRelaunched(group=group, member=member, execution=execution.name, reason=reason)
        )


def name_of(group: int, member: int) -> ExecutionId:
    return ExecutionId(f"g{group:05d}-{member:02d}")


def next_name(name: ExecutionId) -> ExecutionId:
    """Of an execution that begins anew: g00001-02, g00001.1-02, g00001.2-02..."""
    group, _, member = name.rpartition("-")
    first, _, number = group.partition(".")
    return ExecutionId(f"{first}.{int(number or 0) + 1}-{member}")


def _kept(name: ExecutionId, closed: Closed | None) -> ClosedExecution | None:
    """A placeholder counts as 0 and has no tokens (SPEC 6.4)."""
    if closed is None or closed.outcome in (Outcome.EXCLUDED, Outcome.SURPLUS):
        return None
    return ClosedExecution(execution=name, reward=0.0 if closed.score is None else closed.score)
