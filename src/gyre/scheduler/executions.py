"""Executions from dispatch to closure: counters d, p, f; evaluation slots.

Rule 1: each execution moves d, p and f exactly once (SPEC 1.2).
Rule 2: a duplicate or late event changes nothing; an impossible one is refused before it does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gyre.scheduler import rules
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.engines import Assignee, Engines
from gyre.scheduler.groups import COUNTED, Burst, MemberStage, OutcomeLedger, OutstandingGroup
from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    Command,
    EvaluationId,
    EvaluationMove,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    LaunchEvaluation,
    LaunchExecution,
    Move,
    MoveExecutions,
    OfferGroup,
)
from gyre.scheduler.policies import LaunchQueue
from gyre.types.errors import InternalError
from gyre.types.ids import EngineId, GroupId
from gyre.types.outcomes import Ending, Outcome


@dataclass(slots=True)
class Counters:
    """Three cumulative counts with 0 <= terminated <= launched <= dispatched (SPEC 1.2)."""

    dispatched: int = 0
    """d."""
    launched: int = 0
    """p."""
    terminated: int = 0
    """f."""

    @property
    def queued(self) -> int:
        return self.dispatched - self.launched

    @property
    def running(self) -> int:
        return self.launched - self.terminated

    @property
    def waterlevel(self) -> int:
        """w: executions that still need rollout capacity, queued or running."""
        return self.dispatched - self.terminated


class EvaluationQueue:
    """Held-out evaluations: those that wait for a slot, in order, and those that run (SPEC 6.6)."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: dict[EvaluationId, None] = {}
        self._running: set[EvaluationId] = set()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def may_start(self) -> bool:
        return bool(self._waiting) and len(self._running) < self._slots

    def request(self, evaluation: EvaluationId) -> None:
        if evaluation not in self._running:
            self._waiting[evaluation] = None

    def start(self) -> EvaluationId:
        evaluation = next(iter(self._waiting))
        del self._waiting[evaluation]
        self._running.add(evaluation)
        return evaluation

    def end(self, evaluation: EvaluationId) -> bool:
        """Whether it ran; one that still waits is dropped."""
        self._waiting.pop(evaluation, None)
        if evaluation not in self._running:
            return False
        self._running.remove(evaluation)
        return True


Moves = tuple[tuple[Move, ...], tuple[EvaluationMove, ...]]


class ExecutionTable:
    """All outstanding groups and their executions."""

    def __init__(self, shape: SchedulerConfig, burst: Burst, engines: Engines) -> None:
        self._shape = shape
        self._burst = burst
        self._engines = engines
        self._groups: dict[GroupId, OutstandingGroup] = {}
        self._queue = LaunchQueue(shape.launch_order)
        self._unanswered = 0
        self._held = 0
        self.counters = Counters()
        self.ledger = OutcomeLedger(window=2 * shape.groups_per_batch)
        self.evaluations = EvaluationQueue(shape.evaluation_slots)

    @property
    def waterlevel(self) -> int:
        """w, held slots and evaluations included; continuous dispatch counts its whole depth."""
        own = self.counters.waterlevel + self._held
        standing = self._shape.dispatch.standing_groups() if self.num_allowed(1) else 0
        return max(own, standing * self._shape.group_size) + self.evaluations.num_running

    def num_allowed(self, wanted: int) -> int:
        """How many of the wanted groups the rest of the run needs (SPEC 1.6)."""
        left = None
        if self._shape.steps is not None and not self._shape.endless_dispatch:
            left = (self._shape.steps - self._burst.version) * self._shape.groups_per_batch
        return rules.groups_to_admit(
            wanted=wanted, outstanding=self.ledger.outstanding, groups_left=left
        )

    def group(self, number: GroupId) -> OutstandingGroup | None:
        """An outstanding group; None when it is consumed already."""
        if not 0 <= number < self.ledger.admitted:
            raise InternalError(f"group {number} was never dispatched")
        return self._groups.get(number)

    def admit(self) -> AdmitGroup:
        version = self._burst.published
        size = self._shape.group_size
        group = OutstandingGroup(
            GroupId(self.ledger.admitted), version, [MemberStage.QUEUED] * size
        )
        self._groups[group.id] = group
        self.ledger.admitted += 1
        self.counters.dispatched += size
        self._unanswered += 1
        return AdmitGroup(group=group.id, version=version, size=size)

    def admitted(self, event: GroupAdmitted) -> None:
        group = self.group(event.group)
        if group is None or group.is_admitted:
            return
        group.is_admitted = True
        self._unanswered -= 1
        self._queue.add(group.id, version=group.version, estimate_s=event.estimate_s)

    def terminated(self, event: ExecutionTerminated) -> None:
        group = self._find(event.group, event.member)
        if group is None or group.stages[event.member] in (
            MemberStage.TERMINATED,
            MemberStage.CLOSED,
        ):
            return
        if group.stages[event.member] is MemberStage.QUEUED:
            if event.ending not in (Ending.CANCELLED, Ending.NEVER_STARTED):
                raise InternalError(f"{_name(event)} ended {event.ending.value} before its launch")
            self.counters.launched += 1
        elif self._shape.evaluation_holds_slot:
            self._held += 1
        else:
            self._engines.unseat((event.group, event.member))
        self.counters.terminated += 1
        group.stages[event.member] = MemberStage.TERMINATED

    def closed(self, event: ExecutionClosed) -> OutstandingGroup | None:
        """The group, unless the event said nothing new."""
        group = self._find(event.group, event.member)
        if group is None or group.stages[event.member] is MemberStage.CLOSED:
            return None
        if group.stages[event.member] is not MemberStage.TERMINATED:
            raise InternalError(f"{_name(event)} closed before it terminated")
        is_full = len(group.counted) >= self._shape.executions_per_group
        if event.outcome is Outcome.SURPLUS and not is_full:
            raise InternalError(f"{_name(event)} is surplus in a group that lacks rewards")
        if self._holds((event.group, event.member)):
            self._engines.unseat((event.group, event.member))
            self._held -= 1
        # After the N-th counted reward all others are surplus, however they ended meanwhile.
        self._close(group, event.member, Outcome.SURPLUS if is_full else event.outcome)
        return group

    def cancels(self, group: OutstandingGroup) -> Iterator[Command]:
        """Ends the members that a full group has no use for (SPEC 6.5)."""
        if len(group.counted) < self._shape.executions_per_group:
            return
        for member, stage in enumerate(group.stages):
            if stage is MemberStage.QUEUED:
                self.counters.launched += 1
                self.counters.terminated += 1
                self._close(group, member, Outcome.SURPLUS)
            elif stage is not MemberStage.CLOSED and member not in group.cancelled:
                group.cancelled.add(member)
                yield CancelExecution(group=group.id, member=member)

    def offer(self, group: OutstandingGroup) -> OfferGroup:
        group.is_void = rules.is_void(counted=len(group.counted), min_valid=self._shape.min_valid)
        self.ledger.became_ready(is_void=group.is_void)
        return OfferGroup(
            group=group.id,
            version=group.version,
            members=tuple(sorted(group.counted)),
            is_void=group.is_void,
        )

    def consume(self, group: OutstandingGroup) -> None:
        self.ledger.consume(is_void=group.is_void)
        del self._groups[group.id]

    def settle(self, *, cells_away: int) -> Iterator[Command]:
        """Gives stranded executions slots, then starts evaluations, then launches what fits."""
        if self._engines.num_stranded:
            moves, evaluations = self.moves(self._engines.rehouse_stranded())
            if moves or evaluations:
                yield MoveExecutions(moves=moves, evaluations=evaluations)
        while (
            self.evaluations.may_start
            and self._engines.occupied < self._engines.limit
            and rules.may_start_evaluation(
                waterlevel=self.waterlevel,
                capacity=self._engines.capacity,
                cells_away=cells_away,
            )
        ):
            evaluation = self.evaluations.start()
            yield LaunchEvaluation(evaluation=evaluation, engine=self._engines.assign(evaluation))
        yield from self._launch()

    def moves(self, places: dict[Assignee, EngineId]) -> Moves:
        """As commands; a terminated execution that holds its slot makes no calls to be moved."""
        moves = []
        evaluations = []
        for seat, engine in places.items():
            if not isinstance(seat, tuple):
                evaluations.append(EvaluationMove(evaluation=seat, engine=engine))
            elif not self._holds(seat):
                moves.append(Move(group=seat[0], member=seat[1], engine=engine))
        return tuple(moves), tuple(evaluations)

    def _launch(self) -> Iterator[Command]:
        if self._shape.launch_order.waits_for_estimates and self._unanswered:
            return
        free = rules.executions_to_launch(
            queued=self.counters.queued,
            capacity=self._engines.limit,
            occupied=self._engines.occupied,
        )
        while free > 0 and (number := self._queue.first()) is not None:
            group = self._groups.get(number)
            member = None if group is None else group.next_queued()
            if group is None or member is None:
                self._queue.drop_first()
                continue
            group.stages[member] = MemberStage.RUNNING
            self.counters.launched += 1
            free -= 1
            engine = self._engines.assign((number, member))
            yield LaunchExecution(group=number, member=member, engine=engine)

    def _holds(self, seat: tuple[GroupId, int]) -> bool:
        """Whether an ended execution still has a slot."""
        if not self._shape.evaluation_holds_slot:
            return False
        group = self._groups[seat[0]]
        return group.stages[seat[1]] is MemberStage.TERMINATED and self._engines.knows(seat)

    def _close(self, group: OutstandingGroup, member: int, outcome: Outcome) -> None:
        group.stages[member] = MemberStage.CLOSED
        group.num_closed += 1
        self.ledger.outcomes[outcome] += 1
        if outcome in COUNTED:
            group.counted.append(member)

    def _find(self, number: GroupId, member: int) -> OutstandingGroup | None:
        group = self.group(number)
        if not 0 <= member < self._shape.group_size:
            raise InternalError(f"group {number} has no member {member}")
        if group is not None and not group.is_admitted:
            raise InternalError(f"group {number} was heard of before it was admitted")
        return group


def _name(event: ExecutionTerminated | ExecutionClosed) -> str:
    return f"execution {event.member} of group {event.group}"
