"""Advice on phi, mu and cells: all pairs that meet a target, and the one whose steps are short."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.scheduler.policies import Boundary, Colocate, Continuous, Resumable
from gyre.simulator.planner import (
    NEAR,
    Layout,
    Option,
    advise,
    best_of,
    divided,
    layout_of,
    pairs,
    scenario_for,
)
from gyre.simulator.workload import ByGroups
from gyre.simulator.world import run
from gyre.types.errors import ConfigError

EIGHT = Layout(num_cells=8, cell_capacity=16, nodes_per_cell=1)
PLAIN = scenario_for(
    layout=EIGHT,
    mean_h=2.0,
    groups_per_batch=8,
    executions_per_group=8,
    groups_per_node_hour=None,
)


def advice(one=PLAIN, *, staleness="1", layouts=None, steps=6):
    layouts = layouts or [layout_of(one)]
    return advise(one, staleness=Fraction(staleness), layouts=layouts, steps=steps)


@given(st.integers(1, 40), st.integers(0, 200))
def test_pairs_are_all_that_have_the_mean_and_no_others(batch, part):
    """Against every pair there could be (SPEC 1.4)."""
    staleness = Fraction(part, 2 * batch)
    expected = {
        (Fraction(extra, batch), burst)
        for burst in range(1, 2 * part + 2)
        for extra in [(staleness - Fraction(burst - 1, 2)) * batch]
        if extra >= 0 and extra.denominator == 1
    }
    try:
        found = set(pairs(staleness, batch=batch)) if staleness <= 64 else expected
    except ConfigError:
        found = set()

    assert expected == found


@pytest.mark.parametrize(
    ("staleness", "batch", "says"),
    [
        ("0.3", 32, r"no phi with phi \* 32 whole .* give 0\.3; nearest: 0\.28125 or 0\.3125"),
        ("0.25", 1, "nearest: 0 or 0.5"),
        ("65", 4, "from 0 to 64 versions, not 65"),
        ("-1", 4, "from 0 to 64 versions, not -1"),
    ],
)
def test_a_target_that_no_pair_meets_is_refused_with_the_nearest(staleness, batch, says):
    with pytest.raises(ConfigError, match=says):
        pairs(Fraction(staleness), batch=batch)


@pytest.mark.parametrize(("batch", "part"), [*product([1, 3, 8], [0.1, 0.37, 1.01, 2.6])])
def test_the_nearest_targets_can_be_met(batch, part):
    with pytest.raises(ConfigError) as refused:
        pairs(Fraction(str(part)), batch=batch)
    near = str(refused.value).partition("nearest: ")[2].split(" or ")

    for one in near:
        assert pairs(Fraction(one).limit_denominator(2 * batch), batch=batch)


def test_each_pair_is_simulated_and_beside_its_bound():
    found = advice(staleness="1.5")

    assert [(1.5, 1), (1.0, 2), (0.5, 3), (0.0, 4)] == [
        (one.extra_dispatch, one.steps_per_burst) for one in found.options
    ]
    for one in found.options:
        assert 0 < one.bound_h <= one.step_h
        assert 0 <= one.idle_share < 1
        assert one.staleness <= one.oldest


def test_an_option_is_what_a_simulation_says_of_it():
    found = advice().options[1]
    shape = replace(
        PLAIN.shape,
        dispatch=Boundary(extra_dispatch=0.5),
        steps_per_burst=2,
        steps=6,
        endless_dispatch=True,
    )
    record = run(replace(PLAIN, shape=shape))

    assert record.hours / 6 == found.step_h
    assert record.node_s.idle_share == found.idle_share
    assert record.staleness.mean == found.staleness
    assert max(record.bounds.packing_s, record.bounds.latency_s) / 3600 / 6 == found.bound_h


def test_steps_are_a_whole_number_of_bursts_and_at_least_as_many():
    """Four steps with mu = 3 are six, as the mean over six says."""
    found = advice(steps=4).options[2]
    six = advice(steps=6).options[2]

    assert (3, six) == (found.steps_per_burst, found)


def test_the_mean_comes_to_the_target_in_a_long_run():
    for one in advice(steps=60).options:
        assert 1.0 == pytest.approx(one.staleness, abs=0.05)


def test_the_best_is_as_short_as_any_and_the_reason_names_its_steps():
    found = advice(staleness="1.5", layouts=[EIGHT, divided(8, 4, 64)])
    shortest = min(one.step_h for one in found.options)

    assert 8 == len(found.options)
    assert found.best in found.options
    assert found.best.step_h <= shortest * (1 + NEAR)
    assert f"its steps of {found.best.step_h:.2f} h" in found.reason
    assert "\n" not in found.reason


def option(step_h, *, oldest, burst):
    return Option(
        layout=EIGHT,
        extra_dispatch=0.0,
        steps_per_burst=burst,
        step_h=step_h,
        bound_h=0.5,
        idle_share=0.1,
        staleness=1.0,
        oldest=oldest,
    )


def test_of_those_about_as_short_the_freshest_is_best_and_then_the_longest_burst():
    shortest = option(1.0, oldest=5, burst=1)
    fresher = option(1.0 + NEAR / 2, oldest=3, burst=1)
    longer_burst = option(1.0 + NEAR / 2, oldest=3, burst=2)
    too_long = option(1.0 + 2 * NEAR, oldest=1, burst=3)

    assert shortest == best_of([shortest, too_long])
    assert fresher == best_of([too_long, shortest, fresher])
    assert longer_burst == best_of([shortest, fresher, longer_burst, too_long])


def test_cells_of_another_size_have_the_nodes_of_the_first():
    found = advice(layouts=[EIGHT, divided(8, 2, 32)])

    assert [(8, 16, 1)] * 3 + [(4, 32, 2)] * 3 == [
        (x.layout.num_cells, x.layout.cell_capacity, x.layout.nodes_per_cell) for x in found.options
    ]


def test_only_one_pair_is_no_choice():
    assert "no other pair meets the target" == advice(staleness="0").reason


def test_whatever_dispatch_the_scenario_had_is_replaced():
    shape = replace(PLAIN.shape, dispatch=Continuous(depth=8), steps=6)

    assert advice() == advice(replace(PLAIN, shape=shape))


def test_another_placement_stays():
    shape = replace(PLAIN.shape, placement=Colocate())

    assert advice().options != advice(replace(PLAIN, shape=shape)).options


@pytest.mark.parametrize(
    ("changes", "how", "says"),
    [
        ({}, {"steps": 0}, "steps: at least 1, not 0"),
        ({}, {"layouts": [Layout(num_cells=0, cell_capacity=1, nodes_per_cell=1)]}, "num_cells: 0"),
        (
            {"placement": Resumable(), "dispatch": Continuous(depth=8)},
            {},
            "resumable goes with continuous dispatch",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes, how, says):
    one = replace(PLAIN, shape=replace(PLAIN.shape, **changes))

    with pytest.raises(ConfigError, match=says):
        advice(one, **how)


@pytest.mark.parametrize(
    ("nodes", "size", "says"),
    [
        (8, 3, "sizes that do: 1, 2, 4, 8"),
        (8, 0, "sizes that do: 1, 2, 4, 8"),
        (8, 16, "sizes that do: 1, 2, 4, 8"),
        (0, 4, "nodes: at least 1, not 0"),
    ],
)
def test_nodes_that_make_no_whole_cells_are_refused(nodes, size, says):
    with pytest.raises(ConfigError, match=says):
        divided(nodes, size, 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mean_h": 0.0}, "hours: above 0, not 0"),
        ({"mean_h": float("nan")}, "hours: above 0, not nan"),
        ({"mean_h": float("inf")}, "hours: above 0, not inf"),
        ({"groups_per_node_hour": 0.0}, "groups per node hour: above 0, not 0"),
        ({"groups_per_batch": 0}, "groups_per_batch: 0 is too few"),
        ({"executions_per_group": 1}, "executions_per_group: 1 is too few"),
        ({"layout": replace(EIGHT, cell_capacity=0)}, "cell_capacity: 0 is too few"),
        ({"layout": replace(EIGHT, nodes_per_cell=0)}, "nodes per cell: above 0, not 0"),
    ],
)
def test_nonsense_makes_no_scenario(changes, says):
    plain = {
        "layout": EIGHT,
        "mean_h": 2.0,
        "groups_per_batch": 8,
        "executions_per_group": 8,
        "groups_per_node_hour": 1.0,
    }
    with pytest.raises(ConfigError, match=says):
        scenario_for(**plain | changes)


def test_a_rate_that_is_not_given_is_half_of_rolling_out():
    """A group of 8 takes 8 * 2 / 16 = 1 h of a cell's rollout, so half an hour of training."""
    assert ByGroups(groups_per_node_hour=2.0) == PLAIN.costs.training
