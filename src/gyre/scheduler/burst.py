"""Where the run is: which step, which phase of its burst, which groups the batch has."""

from dataclasses import dataclass, field
from enum import Enum

from gyre.scheduler.groups import OutstandingGroup


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
