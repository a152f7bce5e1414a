"""Executions of a run's groups: drawn, launched, closed with their rewards, and kept for training.

Rule 1: p, f and closure move once for every member of every group (SPEC 1.2).
Rule 2: what an earlier controller launched goes on; only what cannot is launched again, renamed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.batching.group_packer import ClosedExecution
from gyre.batching.task_sampler import TaskSampler
from gyre.controller.executions.supervisors import SupervisedExecution, Supervisors, SupervisorsOf
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


@dataclass(frozen=True, slots=True)
class _Drawn:
    position: int
    query: int
    task: Task


class GroupExecutions:
    """Draws, launches and closes the executions of all groups that are not ready yet."""

    def __init__(
        self,
        loop: RunLoop,
        folder: Path,
        tasks: TaskSource,
        queries: TaskSampler,
        supervisors_of: SupervisorsOf,
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._tasks = tasks
        self._queries = queries
        self._drawn: dict[GroupId, _Drawn] = {}
        self._ready: dict[GroupId, int] = {}
        """Queries of groups that are ready and not consumed."""
        self._assigned: set[GroupId] = set()
        """Those of them that the open batch has pulled."""
        self._names: dict[tuple[GroupId, int], ExecutionId] = {}
        """Of those that were launched."""
        self._places: dict[ExecutionId, tuple[GroupId, int]] = {}
        self._closings: dict[ExecutionId, Closed] = {}
        self.running = ChangeTrackingDict[ExecutionId, tuple[GroupId, int]]()
        """Those that are launched and not terminated."""
        self._surplus: set[ExecutionId] = set()
        """Those that were cancelled, however they end (SPEC 6.5)."""
        self._renamed: set[ExecutionId] = set()
        """Those that begin anew once their new names are written down."""
        self._rewarded: set[ExecutionId] = set()
        """Those whose reward an earlier controller wrote down, and not that they are closed."""
        self.supervisors: Supervisors = supervisors_of(self._terminated, self._closed, self._lost)

    def name_at(self, group: GroupId, member: int) -> ExecutionId | None:
        """None of a member that was never launched, or whose group has been taken."""
        return self._names.get((group, member))

    def admit(self, command: AdmitGroup) -> None:
        """The next query is the group's."""
        position = self._queries.num_drawn
        query = self._queries.draw()
        self._drawn[command.group] = drawn = _Drawn(position, query, self._tasks.get(query))
        self._say_drawn(command, drawn)
        self._loop.record(GroupAdmitted(group=command.group))

    def launch(self, command: LaunchExecution) -> None:
        place = command.group, command.member
        name = self._name(place, name_of(*place))
        self.running[name] = place
        self.supervisors.launch(name, self._drawn[command.group].task, self._folder / name)

    def cancel(self, command: CancelExecution) -> None:
        """A surplus execution ends unassessed."""
        group, member = command.group, command.member
        name = self._names.get((group, member))
        if name is not None:
            self._surplus.add(name)
            if name not in self._renamed:
                self.supervisors.cancel(name)
            return
        # Never launched: p and f move in one event (SPEC 1.2).
        ending, outcome = Ending.CANCELLED, Outcome.SURPLUS
        self._loop.record(ExecutionTerminated(group=group, member=member, ending=ending))
        self._loop.record(ExecutionClosed(group=group, member=member, outcome=outcome))

    def take(self, group: GroupId, size: int) -> dict[int, ClosedExecution | None]:
        """What a ready group's executions left, by member; nothing is kept of it here."""
        self._ready[group] = self._drawn.pop(group).query
        found: dict[int, ClosedExecution | None] = {}
        for member in range(size):
            name = self._names.pop((group, member), None)
            found[member] = None
            if name is not None:
                found[member] = _kept(name, self._closings.pop(name, None))
                self._surplus.discard(name)
                if self._places.pop(name, None) is not None:
                    self.supervisors.forget(name)
        return found

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
        self._drawn[number] = _Drawn(position, query, task)
        for member, one in enumerate(group.members):
            if one.engine is None:
                continue
            place = number, member
            name = self._name(place, ExecutionId(one.name or name_of(*place)))
            if one.is_cancelled:
                self._surplus.add(name)
            if one.outcome is not None:
                del self._places[name]
                self._closings[name] = Closed(outcome=one.outcome, score=one.score, reason="")
            elif one.is_rewarded:
                self._rewarded.add(name)

    def resume(self, group: RecoveredGroup) -> None:
        """Executions that are not closed go on; a command without an answer is answered."""
        number = group.admitted.group
        if not group.is_answered:
            if group.task is None:
                self._say_drawn(group.admitted, self._drawn[number])
            self._loop.record(GroupAdmitted(group=number))
            return
        for member, one in enumerate(group.members):
            if one.engine is None or one.outcome is not None:
                continue
            name = self._names[number, member]
            if not one.is_terminated:
                self.running[name] = number, member
            self.supervisors.adopt(
                name,
                self._drawn[number].task,
                self._folder / name,
                is_cancelled=one.is_cancelled,
                is_terminated=one.is_terminated,
            )

    def _lost(self, one: SupervisedExecution, reason: str) -> None:
        """The same member again, under a name that has neither a log nor a folder."""
        group, member = place = self._places.pop(one.name)
        del self._names[place]
        self.running.pop(one.name, None)
        name = self._name(place, next_name(one.name))
        if one.name in self._surplus:
            self._surplus.remove(one.name)
            self._surplus.add(name)
        self.running[name] = place
        self._renamed.add(name)
        self._loop.record(
            ExecutionRelaunched(group=group, member=member, execution=name, reason=reason)
        )

    def noticed(self, now: float, fact: Any) -> None:
        """A fact is in the journal, and what follows from it is done."""
        match fact:
            case ExecutionRelaunched(group=group, execution=execution):
                self._begin_anew(GroupId(group), ExecutionId(execution))
            case GroupAssigned(group=group) if group in self._ready:
                self._assigned.add(group)
            case StepTaken():
                self._consume(sorted(self._assigned))
                self._assigned.clear()
            case _:
                pass

    def _begin_anew(self, group: GroupId, name: ExecutionId) -> None:
        """Only now, lest a name be used twice."""
        self._renamed.discard(name)
        self.supervisors.launch(name, self._drawn[group].task, self._folder / name)
        if name in self._surplus:
            self.supervisors.cancel(name)

    def _say_drawn(self, command: AdmitGroup, drawn: _Drawn) -> None:
        names = tuple(name_of(command.group, member) for member in range(command.size))
        self._loop.record(
            GroupDrawn(
                group=command.group,
                position=drawn.position,
                task=drawn.task.id,
                executions=names,
            )
        )

    def _name(self, place: tuple[GroupId, int], name: ExecutionId) -> ExecutionId:
        self._places[name], self._names[place] = place, name
        return name

    async def _terminated(self, one: SupervisedExecution, fact: Terminated) -> None:
        group, member = self._places[one.name]
        del self.running[one.name]
        self._loop.record(ExecutionTerminated(group=group, member=member, ending=fact.ending))

    async def _closed(self, one: SupervisedExecution, fact: Closed) -> None:
        group, member = self._places[one.name]
        if one.name in self._surplus:
            # Its score may have come in the same moment; it is one more than the group has.
            fact = Closed(outcome=Outcome.SURPLUS, score=None, reason=fact.reason)
        self._closings[one.name] = fact
        ran_s = None if one.terminated is None else one.terminated.elapsed_s
        if one.name not in self._rewarded:
            self._loop.record(
                RewardGiven(
                    group=group,
                    member=member,
                    execution=one.name,
                    score=fact.score,
                    ran_s=ran_s,
                    reason=fact.reason if fact.score is None else None,
                )
            )
        self._loop.record(ExecutionClosed(group=group, member=member, outcome=fact.outcome))


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
