"""Executions of a run's groups: drawn, launched, closed with their rewards, and kept for training.

Rule 1: p, f and closure move once for every member of every group (SPEC 1.2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.plan.messages import (
    AdmitGroup,
    CancelExecution,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupId,
    LaunchExecution,
)
from gyre.run.materialise import Kept
from gyre.run.supervisors import Supervised, Supervisors, SupervisorsOf
from gyre.stream.queries import Queries
from gyre.words.events import GroupDrawn, RewardGiven
from gyre.words.ids import ExecutionId
from gyre.words.outcomes import Closed, Ending, Outcome, Terminated
from gyre.words.places import TaskSource
from gyre.words.tasks import Task


@dataclass(frozen=True, slots=True)
class _Drawn:
    query: int
    task: Task


class Attempts:
    """All executions of groups that are not ready yet."""

    def __init__(
        self,
        folder: Path,
        tasks: TaskSource,
        queries: Queries,
        supervisors_of: SupervisorsOf,
        *,
        hear: Callable[[Any], None],
    ) -> None:
        self._folder = folder
        self._tasks = tasks
        self._queries = queries
        self._hear = hear
        self._drawn: dict[GroupId, _Drawn] = {}
        self._places: dict[ExecutionId, tuple[GroupId, int]] = {}
        self._closings: dict[ExecutionId, Closed] = {}
        self._running: dict[ExecutionId, tuple[GroupId, int]] = {}
        self._surplus: set[ExecutionId] = set()
        """Those that were cancelled, whatever they come to (SPEC 6.5)."""
        self.supervisors: Supervisors = supervisors_of(self._terminated, self._closed)

    @property
    def running(self) -> Mapping[ExecutionId, tuple[GroupId, int]]:
        """Those that are launched and not terminated."""
        return self._running

    def admit(self, command: AdmitGroup) -> None:
        """The next query is the group's."""
        position = self._queries.num_drawn
        query = self._queries.draw()
        task = self._tasks.get(query)
        self._drawn[command.group] = _Drawn(query, task)
        names = tuple(name_of(command.group, member) for member in range(command.size))
        self._hear(
            GroupDrawn(group=command.group, position=position, task=task.id, executions=names)
        )
        self._hear(GroupAdmitted(group=command.group))

    def launch(self, command: LaunchExecution) -> None:
        place = command.group, command.member
        name = name_of(*place)
        self._places[name] = self._running[name] = place
        self.supervisors.launch(name, self._drawn[command.group].task, self._folder / name)

    def cancel(self, command: CancelExecution) -> None:
        """A surplus execution ends unassessed."""
        group, member = command.group, command.member
        name = name_of(group, member)
        if name in self._places:
            self._surplus.add(name)
            self.supervisors.cancel(name)
            return
        # Never launched: p and f move in one event (SPEC 1.2).
        ending, outcome = Ending.CANCELLED, Outcome.SURPLUS
        self._hear(ExecutionTerminated(group=group, member=member, ending=ending))
        self._hear(ExecutionClosed(group=group, member=member, outcome=outcome))

    def take(self, group: GroupId, size: int) -> dict[int, Kept | None]:
        """What a ready group's executions left, by member; nothing is kept of it here."""
        self._queries.done(self._drawn.pop(group).query)
        found: dict[int, Kept | None] = {}
        for member in range(size):
            name = name_of(group, member)
            found[member] = _kept(name, self._closings.pop(name, None))
            self._surplus.discard(name)
            if self._places.pop(name, None) is not None:
                self.supervisors.forget(name)
        return found

    async def _terminated(self, one: Supervised, fact: Terminated) -> None:
        group, member = self._places[one.name]
        del self._running[one.name]
        self._hear(ExecutionTerminated(group=group, member=member, ending=fact.ending))

    async def _closed(self, one: Supervised, fact: Closed) -> None:
        group, member = self._places[one.name]
        if one.name in self._surplus:
            # Its score may have come in the same moment; it is one more than the group has.
            fact = Closed(outcome=Outcome.SURPLUS, score=None, reason=fact.reason)
        self._closings[one.name] = fact
        ran_s = None if one.terminated is None else one.terminated.elapsed_s
        self._hear(
            RewardGiven(
                group=group, member=member, execution=one.name, score=fact.score, ran_s=ran_s
            )
        )
        self._hear(ExecutionClosed(group=group, member=member, outcome=fact.outcome))


def name_of(group: int, member: int) -> ExecutionId:
    return ExecutionId(f"g{group:05d}-{member:02d}")


def _kept(name: ExecutionId, closed: Closed | None) -> Kept | None:
    """A placeholder counts as 0 and has no tokens (SPEC 6.4)."""
    if closed is None or closed.outcome in (Outcome.EXCLUDED, Outcome.SURPLUS):
        return None
    return Kept(execution=name, reward=0.0 if closed.score is None else closed.score)
