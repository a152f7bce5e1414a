"""The paper's runs as plain data: the schedule of each row, and the machines it had."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

PlacementName: TypeAlias = Literal["elastic", "async", "colocate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The sizes of a setting: batches, cells, and how long it ran."""

    name: str
    groups_per_batch: int
    """B."""
    executions_per_group: int = 16
    """N."""
    num_cells: int
    """All of them, standalone ones included."""
    nodes_per_cell: int
    cell_capacity: int
    """Executions that a cell serves at once."""
    steps: int

    def merged(self, many: int) -> "Machines":
        """So many cells each joined to a larger one."""
        return replace(
            self,
            num_cells=self.num_cells // many,
            nodes_per_cell=self.nodes_per_cell * many,
            cell_capacity=self.cell_capacity * many,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One row: a schedule, the part of its cells that only serves, and its machines."""

    name: str
    machines: Machines
    placement: PlacementName
    streaming: bool = True
    extra_dispatch: float
    """phi."""
    steps_per_burst: int
    """mu."""
    standalone: int = 0
    """Of the machines' cells: those that only serve."""
    evaluation_holds_slot: bool = True
    """The published hours suggest it (SPEC 1.3)."""
    endless_dispatch: bool = True
    """Every row is the beginning of a longer run (SPEC 1.6)."""

    @property
    def staleness(self) -> float:
        """Its mean in the long run (SPEC 1.4)."""
        return self.extra_dispatch + (self.steps_per_burst - 1) / 2

    def num_standalone(self, num_cells: int) -> int:
        """Of so many cells in the row's proportion, halves rounded up; at least one on each side.

        None of the cells where the row has none; needs two cells where it has some.
        """
        if not self.standalone:
            return 0
        whole = self.machines.num_cells
        nearest = (2 * num_cells * self.standalone + whole) // (2 * whole)
        return min(max(1, nearest), num_cells - 1)

    def __str__(self) -> str:
        """The row in one line."""
        machines = self.machines
        alone = f", {self.standalone} standalone" if self.standalone else ""
        pace = f"phi {self.extra_dispatch:g}, mu {self.steps_per_burst}"
        return (
            f"{self.placement}, {'streaming' if self.streaming else 'whole bursts'}, {pace}; "
            f"{machines.num_cells} cells of {machines.cell_capacity}{alone}"
        )


NL2REPO = Machines(
    name="nl2repo",
    groups_per_batch=32,
    num_cells=8,
    nodes_per_cell=4,
    cell_capacity=144,
    steps=48,
)
DEEPSWE = Machines(
    name="deepswe",
    groups_per_batch=48,
    num_cells=6,
    nodes_per_cell=4,
    cell_capacity=192,
    steps=24,
)
TERMINALBENCH = replace(DEEPSWE, name="terminalbench")
NL2REPO_MAX = Machines(
    name="nl2repo-max",
    groups_per_batch=32,
    num_cells=4,
    nodes_per_cell=48,
    cell_capacity=384,
    steps=48,
)
"""The 2.4T model.

Its limit of 384 is taken per cell, because 384 executions of this length at once, in all, could
not finish 48 steps in the published time under any schedule.
"""


def beside_each_other(machines: Machines, *, staleness: float) -> dict[str, Preset]:
    """Gyre and its two baselines in a setting, at one target of mean staleness: 1 or 1.5."""
    burst = round(2 * staleness)
    where = f"{machines.name}-{staleness:g}"
    return {
        "gyre": Preset(
            name=f"{where}-gyre",
            machines=machines,
            placement="elastic",
            extra_dispatch=0.5,
            steps_per_burst=burst,
        ),
        "async": Preset(
            name=f"{where}-async",
            machines=machines,
            placement="async",
            streaming=False,
            extra_dispatch=staleness,
            steps_per_burst=1,
            standalone=machines.num_cells // 2,
        ),
        "colocate": Preset(
            name=f"{where}-colocate",
            machines=machines,
            placement="colocate",
            streaming=False,
            extra_dispatch=0.0,
            steps_per_burst=burst + 1,
        ),
    }


def _ablation() -> dict[str, Preset]:
    """Twelve steps at a mean staleness of 1.5 (tab:ablation-scheduling), each row by the last."""
    a0 = Preset(
        name="A0",
        machines=replace(NL2REPO, steps=12),
        placement="async",
        streaming=False,
        extra_dispatch=1.5,
        steps_per_burst=1,
        standalone=4,
    )
    c0 = replace(
        a0, name="C0", placement="colocate", extra_dispatch=0.0, steps_per_burst=4, standalone=0
    )
    c1 = replace(c0, name="C1", extra_dispatch=0.5, steps_per_burst=3, standalone=1)
    c2 = replace(c1, name="C2", streaming=True)
    e0 = replace(c2, name="E0", placement="elastic", standalone=0)
    rows = (
        a0,
        replace(a0, name="A1", standalone=6),
        replace(a0, name="A2", extra_dispatch=0.5, steps_per_burst=3),
        replace(a0, name="A3", streaming=True),
        c0,
        c1,
        c2,
        replace(c2, name="C3", standalone=4),
        e0,
        replace(e0, name="E1", extra_dispatch=1.5, steps_per_burst=1),
        replace(e0, name="E2", machines=e0.machines.merged(2)),
    )
    return {row.name: row for row in rows}


ABLATION = _ablation()
"""Its eleven rows by name, in the paper's order."""

PRESETS: dict[str, Preset] = ABLATION | {
    preset.name: preset
    for machines, targets in (
        (NL2REPO, (1.0, 1.5)),
        (DEEPSWE, (1.0, 1.5)),
        (TERMINALBENCH, (1.0, 1.5)),
        (NL2REPO_MAX, (1.5,)),
    )
    for staleness in targets
    for preset in beside_each_other(machines, staleness=staleness).values()
}
"""Every preset by name."""
