"""Four sizes of a run, each with what the simulator says of its pace."""

from dataclasses import dataclass, replace
from functools import cached_property

from gyre.simulator.paper import GROUPS_PER_NODE_HOUR, NL2REPO, NL2REPO_MAX, PaperSetting, compared
from gyre.simulator.result import SimulationResult
from gyre.simulator.scenario import Scenario
from gyre.simulator.workload import ByGroups
from gyre.simulator.world import run

STEPS = 6
STALENESS = 1.5
GPUS = 8
"""Of a node."""
SHAPE_122B = (94, 4, 128)
"""Layers, heads of keys and values, and their size, of an open model of twice that size, because
the paper does not give those of its own."""
SHAPE_8B = (36, 8, 128)


@dataclass(frozen=True)
class Size:
    """A run's machines, model and work."""

    name: str
    setting: PaperSetting
    cells: int
    nodes_per_cell: float
    capacity: int
    groups: int
    members: int
    parameters: float
    cache: tuple[int, int, int]
    groups_per_node_hour: float

    @property
    def live(self) -> int:
        return self.cells * self.capacity

    @property
    def cell_gpus(self) -> float:
        return GPUS * self.nodes_per_cell

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def state_bytes(self) -> float:
        """Of a trainer: weights, float32 masters, two moments, sum of gradients."""
        return 16 * self.parameters

    @property
    def cache_token_bytes(self) -> float:
        """Keys and values of all layers, bf16."""
        layers, heads, size = self.cache
        return 2 * layers * heads * size * 2

    @cached_property
    def record(self) -> SimulationResult:
        """A few steps of it in virtual time."""
        return run(self._scenario)

    @property
    def _scenario(self) -> Scenario:
        one = compared(self.setting, staleness=STALENESS)["gyre"]
        shape = replace(
            one.shape,
            num_cells=self.cells,
            cell_capacity=self.capacity,
            groups_per_batch=self.groups,
            executions_per_group=self.members,
            steps=STEPS,
        )
        costs = replace(
            one.costs, training=ByGroups(groups_per_node_hour=self.groups_per_node_hour)
        )
        return replace(one, shape=shape, costs=costs, nodes_per_cell=self.nodes_per_cell)

    @property
    def _seconds(self) -> float:
        return self.record.steps[-1].at_s

    @property
    def step_s(self) -> float:
        return self._seconds / STEPS

    @property
    def publication_s(self) -> float:
        return self._seconds / self.record.counts.publications

    @property
    def executions_s(self) -> float:
        return self.record.counts.executions_launched / self._seconds

    @property
    def events_s(self) -> float:
        return self.record.counts.events / self._seconds

    @property
    def claims_s(self) -> float:
        return self.record.counts.claims_done / self._seconds

    @property
    def moves_s(self) -> float:
        return self.record.counts.executions_moved / self._seconds

    @property
    def cells_in_step(self) -> float:
        return sum(one.num_cells for one in self.record.steps) / STEPS


def _of_nl2repo(name: str, times: int) -> Size:
    """So many times the cells and the batch of the paper's setting."""
    machines = NL2REPO.machines
    return Size(
        name=name,
        setting=NL2REPO,
        cells=machines.num_cells * times,
        nodes_per_cell=machines.nodes_per_cell,
        capacity=machines.cell_capacity,
        groups=machines.groups_per_batch * times,
        members=machines.executions_per_group,
        parameters=122e9,
        cache=SHAPE_122B,
        groups_per_node_hour=GROUPS_PER_NODE_HOUR,
    )


_LARGEST = NL2REPO_MAX.machines
SIZES = (
    Size(
        name=f"{GPUS} GPUs",
        setting=NL2REPO,
        cells=2,
        nodes_per_cell=0.5,
        capacity=32,
        groups=8,
        members=8,
        parameters=8.2e9,
        cache=SHAPE_8B,
        groups_per_node_hour=GROUPS_PER_NODE_HOUR * 122 / 8.2,
    ),
    _of_nl2repo("256 GPUs", 1),
    _of_nl2repo("2,048 GPUs", 8),
    Size(
        name="192 nodes",
        setting=NL2REPO_MAX,
        cells=_LARGEST.num_cells,
        nodes_per_cell=_LARGEST.nodes_per_cell,
        capacity=_LARGEST.cell_capacity,
        groups=_LARGEST.groups_per_batch,
        members=_LARGEST.executions_per_group,
        parameters=2.4e12,
        cache=SHAPE_122B,
        groups_per_node_hour=NL2REPO_MAX.groups_per_node_hour,
    ),
)
"""The smallest trains by its parameters faster than the paper's model; all do the same work."""
