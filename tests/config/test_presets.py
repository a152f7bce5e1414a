"""A preset fills in what a file leaves out, and nothing that the file says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.config.support.tables import mistakes, read, tables

from gyre.config.loader import loaded
from gyre.config.presets import ABLATION, MOST_CELLS, PRESETS

SIZES = {"schedule": {"groups_per_batch": 4, "executions_per_group": 4, "steps": 12}}


def filled(preset, *overrides, **changes):
    """The tree of a small file under a preset."""
    return loaded("run.toml", {"preset": preset, **tables(**(SIZES | changes))}, overrides)


def cells(preset, **given):
    found = filled(preset, cells={"capacity": 8, **given}).config.cells
    return found.count, found.standalone


@pytest.mark.parametrize("name", PRESETS)
def test_policies_are_the_preset_s_and_sizes_the_file_s(name):
    preset, config = PRESETS[name], filled(name, cells={"count": 4, "capacity": 8}).config
    schedule = config.schedule

    assert (preset.placement, preset.streaming) == (schedule.placement, schedule.streaming)
    assert (preset.extra_dispatch, preset.steps_per_burst) == (
        schedule.phi,
        schedule.steps_per_burst,
    )
    assert (True, True) == (schedule.evaluation_holds_slot, schedule.endless_dispatch)
    assert (4, 4, 12) == (
        schedule.groups_per_batch,
        schedule.executions_per_group,
        schedule.steps,
    )
    assert (8, 1.0) == (config.cells.capacity, config.cells.nodes)
    assert 4 == config.cells.count + len(config.cells.standalone)


def test_what_a_file_leaves_out_is_the_paper_s():
    config = filled("E2", schedule=None, cells=None).config

    assert (32, 16, 12) == (
        config.schedule.groups_per_batch,
        config.schedule.executions_per_group,
        config.schedule.steps,
    )
    assert (4, 288, (), 8.0) == (
        config.cells.count,
        config.cells.capacity,
        config.cells.standalone,
        config.cells.nodes,
    )


@pytest.mark.parametrize(
    ("preset", "count", "expected"),
    [
        ("A0", 2, (1, 1)),
        ("A0", 5, (2, 3)),
        ("A0", 8, (4, 4)),
        ("A1", 2, (1, 1)),
        ("A1", 4, (1, 3)),
        ("A1", 8, (2, 6)),
        ("C1", 2, (1, 1)),
        ("C1", 12, (10, 2)),
        ("C1", 16, (14, 2)),
        ("C3", 3, (1, 2)),
        ("deepswe-1-async", 6, (3, 3)),
        ("C0", 1, (1, 0)),
        ("E0", 5, (5, 0)),
        ("E2", 8, (8, 0)),
    ],
)
def test_cells_are_split_in_the_row_s_proportion(preset, count, expected):
    found = cells(preset, count=count)

    assert (expected[0], (8,) * expected[1]) == found


@given(st.sampled_from(sorted(PRESETS)), st.integers(2, 500))
def test_a_split_loses_no_cell_and_leaves_some_on_either_side(name, count):
    preset = PRESETS[name]
    alone = preset.num_standalone(count)

    assert (0 < alone < count) == (preset.standalone > 0)
    if 1 < alone < count - 1:
        whole = preset.machines.num_cells
        assert 2 * abs(alone * whole - preset.standalone * count) <= whole


def test_a_split_of_the_file_s_own_stays():
    assert (6, (3, 4)) == cells("A0", count=6, standalone=[3, 4])
    assert (4, (3,)) == cells("A0", standalone=[3])
    assert (4, (8, 8, 8, 8)) == cells("A0")


@pytest.mark.parametrize("count", [1, MOST_CELLS + 1])
def test_cells_that_cannot_be_split_are_refused(count):
    found = filled("A0", cells={"count": count, "capacity": 8}).mistakes

    assert (
        f"cells.count: preset A0 splits the cells in two; expected at least 2 and at most "
        f"{MOST_CELLS}, found {count}",
    ) == found


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"cells": {"count": "many", "capacity": 8}}, "cells.count: expected a whole number"),
        ({"cells": {"count": True, "capacity": 8}}, "cells.count: expected a whole number"),
        ({"cells": {"count": 0, "capacity": 8}}, "cells.count: expected a whole number"),
        ({"cells": 3}, "cells: expected a table, found 3"),
        ({"schedule": "E0"}, 'schedule: expected a table, found "E0"'),
        ({"schedule": {"placment": "async"}}, "schedule.placment: unknown key"),
    ],
)
def test_mistakes_of_the_file_are_still_the_file_s(wrong, expected):
    (found,) = filled("A0", **wrong).mistakes

    assert found.startswith(expected)


@pytest.mark.parametrize("way", [{"staleness": 2}, {"depth": 6}, {"extra_dispatch": 2}])
def test_another_way_to_dispatch_takes_the_place_of_the_preset_s(way):
    found = filled("E0", schedule=SIZES["schedule"] | way)
    (name,) = way

    assert () == found.mistakes
    assert (f"schedule.{name}",) == found.besides_preset
    assert 3 == found.config.schedule.steps_per_burst


def test_what_the_file_says_stays_and_is_named():
    found = filled(
        "C2", "schedule.streaming=false", schedule=SIZES["schedule"] | {"placement": "elastic"}
    )

    assert ("elastic", False) == (
        found.config.schedule.placement,
        found.config.schedule.streaming,
    )
    assert ("schedule.placement", "schedule.streaming") == found.besides_preset
    assert "preset C2, but for schedule.placement and schedule.streaming" == found.schedule


def test_origins_name_the_preset():
    found = filled("A0", "schedule.steps=24", cells={"count": 6, "capacity": 8})

    assert "preset A0" == found.origin(("schedule", "placement"))
    assert "preset A0, of 6" == found.origin(("cells", "count"))
    assert "preset A0" == found.origin(("cells", "standalone"))
    assert "override" == found.origin(("schedule", "steps"))
    assert "file" == found.origin(("cells", "capacity"))
    assert "default" == found.origin(("cells", "nodes"))


def test_a_preset_beside_the_file_takes_the_place_of_the_file_s():
    assert "E1" == filled("A0", "preset=E1").preset
    assert None is filled("A0", "preset=", cells={"count": 2, "capacity": 8}).preset
    assert "A0" == read("preset=A0", **SIZES).preset
    assert None is read().preset


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a0", 'found "a0"; nearest: "A0"; `gyre config presets` lists them'),
        ("E7", 'found "E7"; nearest: "E2"; '),
        ("deepswe-1-gyr", 'found "deepswe-1-gyr"; nearest: "deepswe-1-gyre"; '),
        ("zzz", 'found "zzz"; `gyre config presets` lists them'),
        (3, "found 3; `gyre config presets` lists them"),
        (["A0"], 'found ["A0"]'),
    ],
)
def test_a_wrong_name_comes_with_the_nearest(name, expected):
    (found,) = filled(name).mistakes

    assert found.startswith(f"preset: expected the name of a preset, {expected}")


def test_a_name_that_is_almost_preset_is_told_so():
    (found,) = mistakes(prest="A0")

    assert found.startswith("prest: unknown table; nearest: preset; ")


def test_the_ablation_is_eleven_rows_at_one_staleness():
    assert "A0 A1 A2 A3 C0 C1 C2 C3 E0 E1 E2" == " ".join(ABLATION)
    assert {1.5} == {one.staleness for one in ABLATION.values()}
    assert {32} == {
        one.machines.num_cells * one.machines.nodes_per_cell for one in ABLATION.values()
    }
