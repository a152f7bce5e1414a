"""A run file and its scheduler's shape: the same defaults, bounds and refusals on both sides."""

import re
import tomllib
from dataclasses import replace
from math import nextafter
from pathlib import Path

import pytest
from tests.config.support.tables import read

from gyre.config.loader import LoadedConfig
from gyre.config.run_config import CellsConfig, ScheduleConfig
from gyre.config.sections import Bounds
from gyre.config.settings import marks_of, parts_of, settings
from gyre.controller.run_dir import checked, read_run
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, LongestFirst
from gyre.simulator.scenario import scenario_of
from gyre.types.errors import ConfigError

ROOT = Path(__file__).parents[2]
SIMULATED = tomllib.loads((ROOT / "examples" / "simulate.toml").read_text())
LIVE = {
    "schedule": {"staleness", "publish_s", "join_s", "lease_s", "group_s"},
    "cells": {
        *("stages", "shards", "experts", "contexts"),
        *("engine", "server", "trainer", "threads"),
    },
}
"""Keys that a simulation has no use for."""


def refusals(*overrides, **changes):
    with pytest.raises(ConfigError) as error:
        checked(read(*overrides, **changes))
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def test_defaults_are_those_of_the_shape():
    expected = SchedulerConfig(
        groups_per_batch=4, executions_per_group=4, num_cells=2, cell_capacity=8
    )

    assert expected == checked(read()).shape


def test_names_stand_for_the_scheduler_s_parts():
    found = checked(
        read(
            "schedule.placement=async",
            "schedule.streaming=false",
            "schedule.launch_order=longest",
            "schedule.depth=3",
            "cells.standalone=[4, 5]",
            "evaluation.slots=2",
            'evaluation.tasks={kind="folder", path="held"}',
        )
    ).shape

    assert Async(streaming=False) == found.placement
    assert LongestFirst() == found.launch_order
    assert Continuous(depth=3) == found.dispatch
    assert ((4, 5), 2) == (found.standalone_capacities, found.evaluation_slots)
    assert Colocate() == checked(read("schedule.placement=colocate")).shape.placement


def test_a_target_staleness_decides_what_is_dispatched():
    found = checked(read("schedule.staleness=1.75", "schedule.steps_per_burst=3")).shape

    assert Boundary(extra_dispatch=0.75) == found.dispatch
    assert 1.75 == found.mean_staleness


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["schedule.min_valid=5"], ["schedule.min_valid: 5 rewards"]),
        (["schedule.steps=5", "schedule.steps_per_burst=2"], ["schedule.steps: 5 is not"]),
        (["schedule.extra_dispatch=0.3"], ["schedule.extra_dispatch: 0.3 times a batch of 4"]),
        (["schedule.placement=async"], ["cells.standalone: none"]),
        (["schedule.depth=3"], ["schedule.depth: 3 groups of 4 need 12 slots"]),
        (
            ["schedule.placement=colocate", "schedule.depth=1"],
            ["schedule.depth: Colocate never drains"],
        ),
        (
            ["schedule.staleness=0.3", "schedule.min_valid=5"],
            ["schedule.staleness: expected", "schedule.min_valid: 5 rewards"],
        ),
        (
            ["run.seed=-1", "schedule.min_valid=5", "nobody.x=1"],
            ["nobody: unknown table", "run.seed: expected", "schedule.min_valid: 5 rewards"],
        ),
        (["cells.count=0", "schedule.min_valid=5"], ["cells.count: expected"]),
    ],
)
def test_the_shape_s_mistakes_have_the_file_s_paths(overrides, expected):
    found = refusals(*overrides)

    assert len(expected) == len(found)
    for start, line in zip(expected, found, strict=True):
        assert line.startswith(start)


def edges():
    """Values just outside the bounds of what the shape is built with."""
    for table, section in (("schedule", ScheduleConfig), ("cells", CellsConfig)):
        for name, one in settings(section).items():
            if name in LIVE[table] | {"nodes"}:
                continue
            (part,) = parts_of(one.type)
            for bounds in marks_of(part):
                assert isinstance(bounds, Bounds)
                outside = {
                    "least": lambda at: at - 1,
                    "above": lambda at: at,
                    "most": lambda at: nextafter(at, at + 1),
                    "below": lambda at: at,
                }
                for side, step in outside.items():
                    if (name, side) == ("extra_dispatch", "most"):
                        # Only keeps products finite; the shape takes what is.
                        continue
                    if (at := getattr(bounds, side)) is not None:
                        yield pytest.param(table, name, step(at), id=f"{table}.{name} {side}")


@pytest.mark.parametrize(("table", "name", "value"), list(edges()))
def test_what_the_bounds_refuse_the_shape_refuses(table, name, value):
    """Sections made by hand are held to the same, though their types alone check nothing."""
    sound = read()
    section = replace(sound.sections[table], **{name: value})
    loose = LoadedConfig(
        where="by hand",
        sections={**sound.sections, table: section},
        mistakes=(),
        given=frozenset(),
        overridden=frozenset(),
    )

    with pytest.raises(ConfigError, match=rf"(?m)^  {table}\.{name}: "):
        checked(loose)
    assert any(one.startswith(f"{table}.{name}: ") for one in refusals(f"{table}.{name}={value}"))


def test_the_tables_of_a_simulation_are_those_of_a_run():
    shared = {name: SIMULATED[name] for name in ("schedule", "cells")}

    assert scenario_of(SIMULATED).shape == checked(read(**shared)).shape


def test_the_tables_of_a_run_are_those_of_a_simulation():
    found = read("schedule.steps=3", "schedule.extra_dispatch=0.25", "cells.standalone=[3]")
    shared = {
        table: {
            name: list(value) if isinstance(value, tuple) else value
            for name in settings(type(found.sections[table]))
            if name not in left_out and (value := getattr(found.sections[table], name)) is not None
        }
        for table, left_out in LIVE.items()
    }
    scenario = scenario_of(SIMULATED | shared)
    plain = scenario_of(SIMULATED | {"cells": {"count": 1, "capacity": 1}})

    assert checked(found).shape == scenario.shape
    assert plain.nodes_per_cell == scenario.nodes_per_cell
    assert plain.join_s == found.sections["schedule"].join_s


@pytest.mark.parametrize(
    ("table", "section"), [("schedule", ScheduleConfig), ("cells", CellsConfig)]
)
def test_a_run_has_every_key_of_a_simulation(table, section):
    with pytest.raises(ConfigError) as error:
        scenario_of({table: {"zzz": 1}})
    (known,) = re.findall(rf"{table}\.zzz: unknown key; known here: (.*)", str(error.value))

    assert set(settings(section)) == set(known.split(", ")) | LIVE[table]


def test_a_file_is_read_with_the_values_beside_it(tmp_path):
    found = read_run(ROOT / "examples" / "run.toml", ["cells.count=3"])

    assert (3, "small") == (found.shape.num_cells, found.config.run.name)
    assert "override" == found.loaded.origin(("cells", "count"))
    with pytest.raises(ConfigError, match="expected a run file"):
        read_run(tmp_path / "no.toml")
