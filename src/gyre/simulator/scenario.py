"""One run to simulate: its shape, the work it meets, what things cost, and a seed."""

from dataclasses import dataclass, field
from math import inf

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.placements import Async
from gyre.simulator.costs import Costs
from gyre.simulator.workload import Workload
from gyre.types.errors import ConfigError
from gyre.types.ids import EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What is known of a query before it runs, for launch orders that ask."""

    sigma: float = 0.0
    """Error of the logarithm of its typical duration."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < inf:
            raise ConfigError(f"estimates.sigma: not below 0, not {self.sigma}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """What breaks, by seeded chance; nothing unless asked."""

    mean_life_h: float = inf
    """Of a cell between its starts and its deaths."""
    restart_s: float = 600.0
    """From a cell's death until it is up again."""
    failed_transitions: float = 0.0
    """Share of transitions that leave a cell where it was."""

    def __post_init__(self) -> None:
        if self.mean_life_h <= 0 or not 0 <= self.restart_s < inf:
            raise ConfigError(f"faults: lives and restarts take time; found {self}")
        if not 0 <= self.failed_transitions < 1:
            raise ConfigError(
                f"faults.failed_transitions: a share below 1, not {self.failed_transitions}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides a simulated run."""

    name: str
    shape: SchedulerConfig
    workload: Workload
    costs: Costs
    nodes_per_cell: float = 1.0
    """What training's cost is divided by; a standalone engine has nodes in proportion to its
    capacity."""
    seed: int = 0
    executions_per_claim: int = 1
    join_s: float = 30.0
    """How long the core waits before its update for satellites that pull (SPEC 3.1)."""
    estimates: Estimates | None = None
    faults: FaultRates = field(default_factory=FaultRates)

    def __post_init__(self) -> None:
        if wrong := list(self._mistakes()):
            raise ConfigError("; ".join(wrong))

    @property
    def node_per_slot(self) -> float:
        return self.nodes_per_cell / self.shape.cell_capacity

    @property
    def num_nodes(self) -> float:
        cells = self.shape.num_cells * self.nodes_per_cell
        return cells + self.shape.standalone_capacity * self.node_per_slot

    @property
    def cells_serve(self) -> bool:
        return not isinstance(self.shape.placement, Async)

    def capacity(self, engine: EngineId) -> int:
        """Executions an engine is meant for."""
        if engine < self.shape.num_cells:
            return self.shape.cell_capacity
        return self.shape.standalone_capacities[engine - self.shape.num_cells]

    def _mistakes(self) -> list[str]:
        found = []
        if not 0 < self.nodes_per_cell < inf:
            found.append(f"nodes_per_cell: above 0, not {self.nodes_per_cell}")
        if self.seed < 0:
            found.append(f"seed: not below 0, not {self.seed}")
        if self.executions_per_claim < 1:
            found.append(f"executions_per_claim: at least 1, not {self.executions_per_claim}")
        if not 0 <= self.join_s < inf:
            found.append(f"join_s: not below 0, not {self.join_s}")
        if self.shape.steps is None:
            found.append("steps: a simulation ends; give a number of steps")
        if self.shape.evaluation_slots:
            found.append("evaluation_slots: held-out evaluation is not simulated; leave it at 0")
        return found
