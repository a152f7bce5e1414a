"""Shapes that cannot be are refused with the field, what was found and what to change."""

import pytest
from tests.scheduler.support.scene import shape

from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, Resumable
from gyre.types.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_cells": 0}, "num_cells: 0 is too few; the least is 1"),
        ({"cell_capacity": 0}, "cell_capacity: 0 is too few; the least is 1"),
        ({"groups_per_batch": 0}, "groups_per_batch: 0 is too few; the least is 1"),
        ({"executions_per_group": 1, "min_valid": 1}, "executions_per_group: 1 is too few"),
        ({"min_valid": 3}, "min_valid: 3 rewards cannot come from a group of 2; the most is 2"),
        ({"min_valid": 0}, "min_valid: 0 is too few; the least is 1"),
        ({"supply_fraction": 0.0}, r"supply_fraction: 0.0 is outside \(0, 1\]; nearest: 0.01"),
        ({"supply_fraction": 1.5}, "nearest: 1.0"),
        ({"supply_fraction": float("nan")}, "supply_fraction: nan is outside"),
        ({"dispatch": Boundary(extra_dispatch=0.7)}, "0.7 times a batch of 2 .*: 0.5 or 1.0"),
        ({"dispatch": Boundary(extra_dispatch=-0.5)}, "extra_dispatch: -0.5 is no depth"),
        ({"dispatch": Boundary(extra_dispatch=float("nan"))}, "extra_dispatch: nan is no depth"),
        ({"dispatch": Boundary(extra_dispatch=1e308)}, r"extra_dispatch: 1e\+308 is no depth"),
        ({"steps": 5, "steps_per_burst": 3}, "steps: 5 is not .* of 3; nearest: 3 or 6"),
        ({"steps": 0, "steps_per_burst": 2}, "steps: 0 is not .*; nearest: 2"),
        ({"steps_per_burst": 0}, "steps_per_burst: 0 is too few"),
        ({"surplus": -1}, "surplus: -1 is too few"),
        ({"max_void": 1.1}, "max_void: 1.1 is no part of a whole; nearest: 1.0"),
        ({"supply_dwell_s": -1.0}, "supply_dwell_s: -1.0"),
        ({"rescue_s": 0.0}, "rescue_s: 0.0"),
        ({"overcommit": 0.9}, "overcommit: 0.9 would leave capacity unused; the least is 1.0"),
        ({"standalone_capacities": (3, 0)}, r"standalone_capacities\[1\]: 0 is no capacity"),
        ({"placement": Async()}, r"nobody serves; give at least one engine, such as \[4\]"),
        ({"dispatch": Continuous(depth=5)}, "5 groups of 2 need 10 slots and 8 .*most is 4"),
        ({"dispatch": Continuous(depth=1), "num_cells": 1}, "add cells or standalone engines"),
        ({"dispatch": Continuous(depth=0)}, "depth: 0 groups dispatch nothing"),
        ({"dispatch": Continuous(depth=1), "placement": Colocate()}, "use Boundary, or Resumable"),
        ({"placement": Resumable()}, "Resumable goes with continuous dispatch"),
        (
            {"placement": Resumable(streaming=True), "dispatch": Continuous(depth=1)},
            "placement.streaming: .* the value is False",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(changes, words):
    with pytest.raises(ConfigError, match=words):
        shape(**changes)


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        shape(num_cells=0, supply_fraction=2, dispatch=Boundary(extra_dispatch=0.7))

    fields = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert ["num_cells", "supply_fraction", "dispatch.extra_dispatch"] == fields


@pytest.mark.parametrize("changes", [{"num_cells": 1}, {"steps": None}, {"steps_per_burst": 1}])
def test_the_smallest_shapes_are_fine(changes):
    assert shape(**changes)


def test_a_fraction_that_floats_cannot_hold_is_whole_where_it_should_be():
    one = shape(groups_per_batch=10, dispatch=Boundary(extra_dispatch=0.3), supply_fraction=0.7)

    assert 13 == one.dispatch.at_start(batch=10, burst=10)
    assert 7 == one.supply_groups


@pytest.mark.parametrize(("extra", "burst", "mean"), [(0.5, 3, 1.5), (1.5, 1, 1.5), (0, 4, 1.5)])
def test_the_mean_staleness_of_the_paper(extra, burst, mean):
    """Rows E0, A0 and C0 of tab:ablation-scheduling (eq:mean-version-diff)."""
    one = shape(dispatch=Boundary(extra_dispatch=extra), steps_per_burst=burst)

    assert mean == one.mean_staleness
