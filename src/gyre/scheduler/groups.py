"""Groups from dispatch to consumption, and what their executions came to."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from gyre.types.ids import GroupId
from gyre.types.outcomes import Outcome


class MemberStage(Enum):
    """How far an execution has come."""

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
    """Two balances: what became of every group, and of every execution (SPEC 10)."""

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
