"""The paper's settings as named presets, and how a run file uses one.

Rule 1: what the file says stays, but for a number of cells that the row splits.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from gyre.config.diagnostics import shown
from gyre.config.settings import PRESET, Keys
from gyre.config.toml import spelled
from gyre.types.errors import ConfigError

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


LISTED = "`gyre config presets` lists them"
MOST_CELLS = 65_536
"""Cells that a row splits; each standalone engine is an entry of a list."""
_WAYS = {"extra_dispatch", "staleness", "depth"}
"""Keys that decide what is dispatched; a file has one of them."""
_POLICY = (
    "placement",
    "streaming",
    "steps_per_burst",
    "extra_dispatch",
    "evaluation_holds_slot",
    "endless_dispatch",
)
"""Keys of [schedule] that make a row what it is; its others are sizes."""

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetTables:
    """Plain tables of a run file, with a preset's values where the file has none."""

    tables: dict[str, Any]
    preset: str | None = None
    origins: Mapping[Keys, str] = field(default_factory=dict)
    """Of the preset's values."""
    besides: tuple[str, ...] = ()
    """Paths at which the file asks for another schedule than the preset's."""
    mistakes: tuple[str, ...] = ()


def filled(tables: Table) -> PresetTables:
    """The tables as they are, where no preset is named."""
    rest = {name: one for name, one in tables.items() if name != PRESET}
    if PRESET not in tables:
        return PresetTables(tables=rest)
    try:
        preset = preset_of(tables[PRESET])
    except ConfigError as error:
        return PresetTables(tables=rest, mistakes=(str(error),))
    origins: dict[Keys, str] = {}
    mistakes: list[str] = []
    besides: tuple[str, ...] = ()
    ways: dict[str, Callable[[Table, Preset], Table]] = {"schedule": _schedule, "cells": _cells}
    for name, from_preset in ways.items():
        given = rest.get(name, {})
        if not isinstance(given, Mapping):
            continue
        try:
            found = from_preset(given, preset)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        rest[name] = {**given, **found}
        for key in found:
            split = f", of {given[key]}" if key in given else ""
            origins[name, key] = f"preset {preset.name}{split}"
        if name == "schedule":
            besides = tuple(_besides(given, preset))
    return PresetTables(
        tables=rest,
        preset=preset.name,
        origins=origins,
        besides=besides,
        mistakes=tuple(mistakes),
    )


def preset_of(name: Any) -> Preset:
    """The row of this name; ConfigError with the nearest name there is."""
    if isinstance(name, str) and name in PRESETS:
        return PRESETS[name]
    lower = {name.lower(): name for name in PRESETS}
    # Names of two letters have one in common with what was meant.
    asked = name.lower() if isinstance(name, str) else ""
    near = get_close_matches(asked, lower, n=1, cutoff=0.5)
    nearest = f"; nearest: {spelled(lower[near[0]])}" if near else ""
    raise ConfigError(
        f"{PRESET}: expected the name of a preset, found {shown(name)}{nearest}; {LISTED}"
    )


def listed() -> Iterator[str]:
    """Every preset in one line."""
    wide = max(map(len, PRESETS)) + 2
    yield from (f"{name:<{wide}}{preset}" for name, preset in PRESETS.items())


def written_out(name: str) -> Iterator[str]:
    """The tables that a preset gives to a file which leaves everything out."""
    preset = preset_of(name)
    for table, values in (("schedule", _schedule({}, preset)), ("cells", _cells({}, preset))):
        yield from (*([""] if table == "cells" else []), f"[{table}]")
        yield from (f"{key} = {spelled(value)}" for key, value in values.items())


def _schedule(given: Table, preset: Preset) -> Table:
    machines = preset.machines
    found = {
        "groups_per_batch": machines.groups_per_batch,
        "executions_per_group": machines.executions_per_group,
        "steps": machines.steps,
        **_policy(preset),
    }
    decided = _WAYS if _WAYS & set(given) else set()
    return {key: one for key, one in found.items() if key not in given and key not in decided}


def _policy(preset: Preset) -> dict[str, Any]:
    return {key: one for key, one in asdict(preset).items() if key in _POLICY}


def _besides(given: Table, preset: Preset) -> Iterator[str]:
    policy = _policy(preset)
    for key, value in given.items():
        is_way = key in _WAYS and key not in policy
        if is_way or (key in policy and value != policy[key]):
            yield f"schedule.{key}"


def _cells(given: Table, preset: Preset) -> Table:
    """The row's cells, or the file's in the row's proportion."""
    machines = preset.machines
    capacity = given.get("capacity", machines.cell_capacity)
    found = {"capacity": capacity}
    if "count" not in given:
        found["count"] = machines.num_cells - preset.standalone
        found["nodes"] = float(machines.nodes_per_cell)
        standalone = preset.standalone
    else:
        standalone = 0 if "standalone" in given else _num_standalone(given["count"], preset)
    found = {key: one for key, one in found.items() if key not in given}
    if standalone and "standalone" not in given:
        found["standalone"] = [capacity] * standalone
        if "count" in given:
            found["count"] = given["count"] - standalone
    return found


def _num_standalone(count: Any, preset: Preset) -> int:
    """Nothing is split of what is no number of cells, because that is refused anyway."""
    is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    if not is_count or not preset.standalone:
        return 0
    if not 2 <= count <= MOST_CELLS:
        raise ConfigError(
            f"cells.count: preset {preset.name} splits the cells in two; "
            f"expected at least 2 and at most {MOST_CELLS}, found {count}"
        )
    return preset.num_standalone(count)
