"""What a board has seen of a run: updates, what cells did, how high the water stood, and counts."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gyre.scheduler.cells import CellState
from gyre.scheduler.staleness import Identity
from gyre.types.outcomes import Ending
from gyre.types.run_events import StepMade


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpan:
    """A cell in one state."""

    start_s: float
    end_s: float
    state: CellState


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandLevel:
    """Demand and room at one time."""

    at_s: float
    waterlevel: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One update."""

    number: int
    """From 1; the version it led to."""
    at_s: float
    took_s: float
    """Since the step before, or since the start."""
    staleness: float
    """Mean over its groups."""
    num_training: int
    """Cells in training when it was taken."""
    identity: Identity
    made: StepMade | None
    """None in a journal without facts for people."""

    @property
    def reward(self) -> float | None:
        return None if self.made is None else self.made.reward


@dataclass(slots=True)
class Tally:
    """How often things happened, and how much there was of them."""

    entered: int = 0
    """Ways into training that began."""
    left: int = 0
    """Ways home that began."""
    turned_back: int = 0
    """Of those, from the way into training."""
    rescues: int = 0
    failed: int = 0
    executions_moved: int = 0
    """Routes changed under live executions."""
    endings: Counter[Ending] = field(default_factory=Counter)
    claims: Counter[int] = field(default_factory=Counter)
    """In updates, by cell."""
    claim_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds spent on them, by cell."""
    trajectories: int = 0
    tokens: int = 0
    """Of packs that updates were made of."""
    row_tokens: int = 0
    """What the same trajectories one by one would have had."""
    targets: int = 0
