"""Groups, the open batch, the phase of the burst, and how old groups are when they are trained."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from gyre.types.ids import GroupId
from gyre.types.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Four sums after an update, in integers (SPEC 1.4)."""

    consumed: int
    """Staleness of all groups consumed so far."""
    outstanding: int
    """Age of the groups that are admitted and not consumed."""
    survivors: int
    """Groups that an update left, summed over updates."""
    lag: int
    """Versions the trainer was ahead at admissions; 0 under boundary dispatch."""

    @property
    def holds(self) -> bool:
        return self.consumed + self.outstanding == self.survivors + self.lag


class Staleness:
    """Ages in versions: v_t - v_d of consumed groups, and of those that are not yet.

    Rule 1: after every update, staleness of the consumed + age of the outstanding = survivors
    summed over updates + lag at admission, in integers; the lag is 0 under boundary dispatch
    (SPEC 1.4).
    """

    def __init__(self) -> None:
        self.histogram: Counter[int] = Counter()
        """Groups consumed, by staleness."""
        self.consumed = 0
        """Sum over consumed groups."""
        self.survivors = 0
        """Groups that an update left, summed over updates."""
        self.lag_at_admission = 0
        """Versions the trainer was ahead of the published one when groups were admitted."""
        self.ready_at_publication = 0
        """Ready groups at publications, summed (R is their mean)."""
        self.publications = 0
        self._outstanding = 0
        self._versions = 0

    def admit(self, *, version: int, trainer_version: int) -> None:
        self._outstanding += 1
        self._versions += version
        self.lag_at_admission += trainer_version - version

    def update(self, *, trainer_version: int, consumed: Iterable[int]) -> None:
        """Counts an update from this version that consumed groups admitted under those versions."""
        for version in consumed:
            self.histogram[trainer_version - version] += 1
            self.consumed += trainer_version - version
            self._outstanding -= 1
            self._versions -= version
        self.survivors += self._outstanding

    def publish(self, *, ready: int) -> None:
        self.publications += 1
        self.ready_at_publication += ready

    def outstanding_age(self, trainer_version: int) -> int:
        return trainer_version * self._outstanding - self._versions

    def identity(self, trainer_version: int) -> Identity:
        """After the update that led to this version."""
        return Identity(
            consumed=self.consumed,
            outstanding=self.outstanding_age(trainer_version),
            survivors=self.survivors,
            lag=self.lag_at_admission,
        )

    @property
    def mean(self) -> float | None:
        groups = self.histogram.total()
        return self.consumed / groups if groups else None


class MemberStage(Enum):
    """How far an execution of a group has come."""

    QUEUED = "queued"
    RUNNING = "running"
    TERMINATED = "terminated"
    CLOSED = "closed"


COUNTED = (Outcome.VALID, Outcome.PLACEHOLDER)
"""Outcomes whose reward enters the group's mean (SPEC 6.4)."""


@dataclass(slots=True)
class OutstandingGroup:
    """One group while it is outstanding."""

    id: GroupId
    version: int
    """v_d."""
    stages: list[MemberStage]
    is_admitted: bool = False
    counted: list[int] = field(default_factory=list)
    """Members whose reward counts, in the order they closed."""
    cancelled: set[int] = field(default_factory=set)
    num_closed: int = 0
    next_member: int = 0
    """No member before it is queued."""
    is_void: bool = False
    is_assigned: bool = False

    @property
    def is_ready(self) -> bool:
        return self.num_closed == len(self.stages)

    def next_queued(self) -> int | None:
        """The first member that has not launched; found in constant time on average."""
        while self.next_member < len(self.stages):
            if self.stages[self.next_member] is MemberStage.QUEUED:
                return self.next_member
            self.next_member += 1
        return None


class OutcomeLedger:
    """Counts what became of every group and of every execution (SPEC 10)."""

    def __init__(self, *, window: int) -> None:
        self.admitted = 0
        self.trained = 0
        self.void = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.window = window
        self._recent: deque[bool] = deque(maxlen=window)
        self.recent_void = 0
        """Void groups among the last to close."""

    @property
    def outstanding(self) -> int:
        """Groups admitted and not consumed."""
        return self.admitted - self.trained - self.void

    @property
    def closed(self) -> int:
        """Executions that have their outcome."""
        return sum(self.outcomes.values())

    def consume(self, *, is_void: bool) -> None:
        if is_void:
            self.void += 1
        else:
            self.trained += 1

    def became_ready(self, *, is_void: bool) -> None:
        if len(self._recent) == self.window:
            self.recent_void -= self._recent[0]
        self._recent.append(is_void)
        self.recent_void += is_void


class Phase(Enum):
    """A burst trains, takes its satellites home, and publishes; then the next one trains."""

    TRAINING = "training"
    RETURNING = "returning"
    PUBLISHING = "publishing"


@dataclass(slots=True)
class Burst:
    """The step being worked on; its number is the trainer's version before it."""

    groups_per_batch: int
    steps_per_burst: int
    version: int = 0
    """v_t: updates taken."""
    published: int = 0
    """The version that engines serve, given to groups as v_d."""
    phase: Phase = Phase.TRAINING
    batch_open: bool = False
    assigned: list[OutstandingGroup] = field(default_factory=list)
    """Groups the batch has."""
    ready: int = 0
    """Groups that are ready and unassigned."""

    @property
    def step(self) -> int:
        return self.version

    @property
    def needed(self) -> int:
        """Groups the batch still needs."""
        return self.groups_per_batch - len(self.assigned)

    @property
    def groups_left(self) -> int:
        """Groups that the rest of the burst needs."""
        steps_left = self.steps_per_burst - self.version % self.steps_per_burst
        return steps_left * self.groups_per_batch - len(self.assigned)

    @property
    def has_begun(self) -> bool:
        return self.version % self.steps_per_burst > 0

    def assign(self, group: OutstandingGroup) -> None:
        group.is_assigned = True
        self.assigned.append(group)
        self.ready -= 1

    def close_batch(self) -> list[OutstandingGroup]:
        """Takes the step and returns the groups it consumed."""
        consumed, self.assigned = self.assigned, []
        self.batch_open = False
        self.version += 1
        return consumed
