"""What a simulated run leaves: steps, roles, waterlevel, node time, staleness and counts."""

from dataclasses import dataclass
from enum import Enum

from gyre.scheduler.groups import Identity
from gyre.scheduler.messages import StopReason
from gyre.simulator.workload import HOUR_S


class Role(Enum):
    """What a cell does."""

    ROLLOUT = "rollout"
    ENTERING = "entering"
    """On its way into training."""
    TRAINING = "training"
    LEAVING = "leaving"
    """On its way home."""
    WAITING = "waiting"
    """Home after a burst, without calls until the weights are published."""
    FENCED = "fenced"
    """Home, without the published weights."""
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleInterval:
    """A cell in one role."""

    start_s: float
    end_s: float
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """One update."""

    number: int
    """From 1; the version it led to."""
    at_s: float
    """When it was taken."""
    took_s: float
    """Since the step before, or since the start."""
    staleness: tuple[tuple[int, int], ...]
    """(staleness, groups consumed with it), the lowest first."""
    num_void: int
    """Groups of it that had no gradient."""
    num_cells: int
    """Cells whose gradients it summed."""
    training_cell_s: float
    """Time that cells spent on its claims."""
    idle_cell_s: float
    """Time that cells in training had nothing to claim since the step before."""
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLevel:
    """Demand and capacity at one time."""

    at_s: float
    waterlevel: int
    running: int
    capacity: int
    """C_R."""
    num_ready: int
    """Ready groups that no batch has pulled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """Node-seconds by what nodes did; they sum to all nodes times all time."""

    rollout_busy: float
    """Nodes of engines that serve, by the part of their capacity that was taken."""
    rollout_idle: float
    training_busy: float
    training_idle: float
    """In training without a claim, waiting for groups, for other cells or for the update."""
    switching: float
    away: float
    """Dead, fenced, or home before a publication."""

    @property
    def total(self) -> float:
        rollout = self.rollout_busy + self.rollout_idle
        return rollout + self.training_busy + self.training_idle + self.switching + self.away

    @property
    def busy_share(self) -> float:
        return (self.rollout_busy + self.training_busy) / self.total if self.total else 0.0

    @property
    def idle_share(self) -> float:
        return 1 - self.busy_share


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessReport:
    """Ages of consumed groups beside what dispatch alone predicts (SPEC 1.4)."""

    histogram: tuple[tuple[int, int], ...]
    """(staleness, groups), the lowest first."""
    mean: float | None
    predicted: float | None
    """The long-run mean: phi + (mu - 1) / 2, or (Q_c + R) / B + (mu - 1) / 2; a short run has
    another, because it begins with fresh groups and ends with groups outstanding."""
    mean_ready: float | None
    """R: ready groups at a publication."""
    admission_phase: float | None
    """alpha: part of the interval between publications that had passed at admission."""
    completion_phase: float | None
    """beta: from the start of the step before the consuming one to readiness, in mean steps."""

    @property
    def interpolated(self) -> float | None:
        """Mean staleness less the admission phase (app:dispatch-metrics)."""
        if self.mean is None or self.admission_phase is None:
            return None
        return self.mean - self.admission_phase


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBounds:
    """Times that no order of the same work could beat: by packing at the capacities of the shape,
    which overcommitted engines exceed; by latency with each burst consuming the groups it did."""

    packing_s: float
    """Consumed groups' slots and training on nodes that are never idle; overcommitted engines do
    more at once and may beat it."""
    latency_s: float
    """The longest chain of consumed groups, each begun at its admission on an empty engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCounts:
    """How often things happened."""

    events: int = 0
    """Handled by the scheduler."""
    commands: int = 0
    """Given by it."""
    groups_admitted: int = 0
    groups_trained: int = 0
    groups_void: int = 0
    executions_dispatched: int = 0
    executions_launched: int = 0
    executions_terminated: int = 0
    executions_timed_out: int = 0
    executions_excluded: int = 0
    executions_moved: int = 0
    """Routes changed under live executions."""
    cells_entered: int = 0
    cells_turned_back: int = 0
    """Sent home on their way into training."""
    rescues: int = 0
    transitions_failed: int = 0
    cells_died: int = 0
    claims_done: int = 0
    claims_returned: int = 0
    publications: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """A run from its start to its last publication."""

    name: str
    seed: int
    stopped: StopReason | None
    """None when it ran out of things to wait for, which no sound run does."""
    end_s: float
    steps: tuple[SimulatedStep, ...]
    roles: tuple[tuple[RoleInterval, ...], ...]
    """Per cell, without gaps from 0 to the end."""
    levels: tuple[SimulatedLevel, ...]
    """At most `MOST_LEVELS`, evenly thinned, the first and the last among them."""
    node_s: NodeTime
    staleness: StalenessReport
    bounds: LowerBounds
    counts: SimulatedCounts

    @property
    def hours(self) -> float:
        """To the last step."""
        return self.steps[-1].at_s / HOUR_S if self.steps else 0.0

    @property
    def identity_holds(self) -> bool:
        return all(step.identity.holds for step in self.steps)


MOST_LEVELS = 2048
"""Points of the waterlevel that a record keeps."""
