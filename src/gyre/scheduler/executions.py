"""Executions from dispatch to closure, counters d, p, f, and the engines that serve them.

Rule 1: each execution moves d, p and f exactly once (SPEC 1.2).
Rule 2: a duplicate or late event changes nothing; an impossible one is refused before it does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import floor

from gyre.scheduler import policies
from gyre.scheduler.config import SchedulerConfig
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
from gyre.scheduler.policies import TOLERANCE, LaunchQueue
from gyre.types.errors import InternalError
from gyre.types.ids import EngineId, GroupId
from gyre.types.outcomes import Ending, Outcome

Assignee = tuple[GroupId, int] | EvaluationId
"""Who sits there: a member of a group, or a held-out evaluation."""


class Engines:
    """Which execution has a slot at which engine; an engine that is not ready has no slots.

    Rule 1: every running execution has a slot at one ready engine, or is stranded because its
    engine was lost.
    Rule 2: a new one goes to the engine with most free slots, one that moves to the highest number,
    which stays in rollout longest (sec:elastic-execution).
    """

    def __init__(self, capacities: Iterable[int], *, overcommit: float) -> None:
        self._capacities = list(capacities)
        self._most = [floor(capacity * overcommit + TOLERANCE) for capacity in self._capacities]
        self._seats: list[dict[Assignee, None]] = [{} for _ in self._capacities]
        self._ready = [False] * len(self._capacities)
        self._calls: list[int | None] = [None] * len(self._capacities)
        self._where: dict[Assignee, EngineId] = {}
        self._stranded: dict[Assignee, None] = {}
        self._by_free: list[tuple[int, int]] = []
        self._generous = True
        self.capacity = 0
        """C_R: executions that the ready engines are meant for (eq:rollout-capacity)."""
        self.limit = 0
        """The same with overcommitment, where it is allowed now."""
        self.num_ready = 0
        self.num_turns = 0
        """Times that one of them became ready, or ceased to be."""

    @property
    def occupied(self) -> int:
        """Executions with a slot, and those that lost theirs."""
        return len(self._where) + len(self._stranded)

    @property
    def num_stranded(self) -> int:
        return len(self._stranded)

    def __len__(self) -> int:
        return len(self._capacities)

    def is_ready(self, engine: EngineId) -> bool:
        return self._ready[engine]

    def load(self, engine: EngineId) -> int:
        return len(self._seats[engine])

    @property
    def loads(self) -> list[int]:
        return [len(seats) for seats in self._seats]

    def engine_of(self, seat: Assignee) -> EngineId | None:
        return self._where.get(seat)

    def knows(self, seat: Assignee) -> bool:
        return seat in self._where or seat in self._stranded

    def open(self, engine: EngineId) -> None:
        if self._ready[engine]:
            return
        self._ready[engine] = True
        self.num_ready += 1
        self.num_turns += 1
        self.capacity += self._capacities[engine]
        self.limit += self._allowed(engine)
        self._note(engine)

    def close(self, engine: EngineId) -> list[Assignee]:
        """The engine takes no execution any more; those it had are stranded, and returned."""
        if not self._ready[engine]:
            return []
        self.capacity -= self._capacities[engine]
        self.limit -= self._allowed(engine)
        self._ready[engine] = False
        self.num_ready -= 1
        self.num_turns += 1
        self._calls[engine] = None
        left = list(self._seats[engine])
        self._seats[engine].clear()
        for seat in left:
            del self._where[seat]
            self._stranded[seat] = None
        return left

    def be_generous(self, generous: bool) -> None:
        """Whether engines may be overcommitted from now on."""
        if generous == self._generous:
            return
        self._generous = generous
        self._recount()

    def report_calls(self, engine: EngineId, calls: int) -> None:
        """An engine as busy as it should be takes no execution above its capacity."""
        if self._ready[engine]:
            self.limit -= self._allowed(engine)
            self._calls[engine] = calls
            self.limit += self._allowed(engine)
            self._note(engine)

    def assign(self, seat: Assignee) -> EngineId:
        """Gives a slot at the engine with the most free ones, the highest number among equals."""
        while self._by_free:
            free, negative = heappop(self._by_free)
            engine = EngineId(-negative)
            if self._ready[engine] and -free == self._num_free(engine) > 0:
                self._take(seat, engine)
                return engine
        raise InternalError(f"no engine has room for {seat}")

    def unseat(self, seat: Assignee) -> None:
        self._stranded.pop(seat, None)
        engine = self._where.pop(seat, None)
        if engine is not None:
            del self._seats[engine][seat]
            self._note(engine)

    def rehouse(self, seats: Iterable[Assignee]) -> dict[Assignee, EngineId]:
        """Gives stranded executions slots, highest engine numbers first; some may get none."""
        found: dict[Assignee, EngineId] = {}
        waiting = iter(list(seats))
        for number in reversed(range(len(self._capacities))):
            engine = EngineId(number)
            if not self._ready[engine]:
                continue
            for _ in range(self._num_free(engine)):
                seat = next(waiting, None)
                if seat is None:
                    return found
                del self._stranded[seat]
                self._take(seat, engine)
                found[seat] = engine
        return found

    def rehouse_stranded(self) -> dict[Assignee, EngineId]:
        if not self._stranded or self.limit <= len(self._where):
            return {}
        return self.rehouse(self._stranded)

    def _take(self, seat: Assignee, engine: EngineId) -> None:
        self._seats[engine][seat] = None
        self._where[seat] = engine
        self._note(engine)

    def _allowed(self, engine: EngineId) -> int:
        calls = self._calls[engine]
        capacity = self._capacities[engine]
        if not self._generous or (calls is not None and calls >= capacity):
            return capacity
        return self._most[engine]

    def _num_free(self, engine: EngineId) -> int:
        return self._allowed(engine) - len(self._seats[engine])

    def _note(self, engine: EngineId) -> None:
        """Notes the engine's free slots; outdated entries are skipped when they come up."""
        if self._ready[engine] and self._num_free(engine) > 0:
            heappush(self._by_free, (-self._num_free(engine), -engine))
        if len(self._by_free) > 8 * len(self._capacities) + 64:
            self._recount()

    def _recount(self) -> None:
        ready = [EngineId(one) for one, is_ready in enumerate(self._ready) if is_ready]
        self.limit = sum(self._allowed(engine) for engine in ready)
        self._by_free = [
            (-self._num_free(engine), -engine) for engine in ready if self._num_free(engine) > 0
        ]
        heapify(self._by_free)


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
        return policies.groups_to_admit(
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
        group.is_void = policies.is_void(
            counted=len(group.counted), min_valid=self._shape.min_valid
        )
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
            and policies.may_start_evaluation(
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
        free = policies.executions_to_launch(
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
