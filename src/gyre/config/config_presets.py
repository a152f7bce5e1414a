"""What a run file leaves out, taken from a row of the paper that it names.

Rule 1: what the file says stays, but for a number of cells that the row splits.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

from gyre.config.diagnostics import shown
from gyre.config.overrides import Keys
from gyre.config.settings import PRESET
from gyre.config.toml import spelled
from gyre.config.words_presets import PRESETS, Preset
from gyre.types.errors import ConfigError

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
    lower = {one.lower(): one for one in PRESETS}
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
