"""Scenarios from tables: what is left out has its default, and every mistake is named at once."""

import tomllib
from math import nan

import pytest

from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, Elastic, LongestFirst
from gyre.simulator.paper import TABLE
from gyre.simulator.scenario import Estimates, FaultRates, Scenario, scenario_of
from gyre.simulator.workload import ByGroups, ByTokens, LogNormal, Quantiles, ReplayedDurations
from gyre.simulator.world import run
from gyre.types.errors import ConfigError

WHOLE = """
name = "mine"
seed = 3

[schedule]
groups_per_batch = 2
executions_per_group = 2
steps_per_burst = 2
steps = 4
extra_dispatch = 0.5

[cells]
count = 3
capacity = 4
nodes = 2
standalone = [4]

[work]
log_mean = 0.0
sigma = 0.4

[deadlines]
harness_h = 3
overall_h = 4.5

[costs]
groups_per_node_hour = 4
"""


def tables(text=WHOLE):
    return tomllib.loads(text)


def mistakes(found):
    with pytest.raises(ConfigError) as refused:
        scenario_of(found)
    return str(refused.value).splitlines()


def test_a_whole_file_is_read_and_runs():
    one = scenario_of(tables())

    assert ("mine", 3, 2) == (one.name, one.seed, one.nodes_per_cell)
    assert (2, 3, 4, (4,)) == (
        one.shape.groups_per_batch,
        one.shape.num_cells,
        one.shape.cell_capacity,
        one.shape.standalone_capacities,
    )
    assert Boundary(extra_dispatch=0.5) == one.shape.dispatch
    assert LogNormal(log_mean=0.0, sigma=0.4) == one.workload.durations
    assert ByGroups(groups_per_node_hour=4) == one.costs.training
    assert 4 == len(run(one).steps)


def test_what_is_left_out_has_the_default_of_its_class():
    one = scenario_of(tables())

    assert (Elastic(), 5.0, 0.1) == (
        one.shape.placement,
        one.shape.supply_dwell_s,
        one.shape.supply_fraction,
    )
    assert (FaultRates(), None, 0.0) == (one.faults, one.estimates, one.costs.update_s)


@pytest.mark.parametrize(
    ("section", "key", "value", "read"),
    [
        ("schedule", "placement", "async", lambda one: one.shape.placement == Async()),
        (
            "schedule",
            "launch_order",
            "longest",
            lambda one: one.shape.launch_order == LongestFirst(),
        ),
        ("schedule", "overcommit", 1.5, lambda one: one.shape.overcommit == 1.5),
        ("work", "decode_share", 0.5, lambda one: one.workload.decode.share == 0.5),
        ("drift", "to", 0.9, lambda one: one.workload.drift.to == 0.9),
        ("estimates", "sigma", 0.3, lambda one: one.estimates == Estimates(sigma=0.3)),
        ("faults", "mean_life_h", 5, lambda one: one.faults.mean_life_h == 5),
    ],
)
def test_every_choice_reaches_its_place(section, key, value, read):
    found = tables()
    found.setdefault(section, {})[key] = value

    assert read(scenario_of(found))


def test_a_colocate_need_not_stream():
    found = tables()
    found["schedule"] |= {"placement": "colocate", "streaming": False}

    assert Colocate(streaming=False) == scenario_of(found).shape.placement


def test_continuous_dispatch_has_a_depth():
    found = tables()
    del found["schedule"]["extra_dispatch"]
    found["schedule"]["depth"] = 3

    assert Continuous(depth=3) == scenario_of(found).shape.dispatch


@pytest.mark.parametrize(
    ("work", "durations"),
    [
        ({"quantiles": [[0, 0.5], [1, 2.0]]}, Quantiles(points=((0, 0.5), (1, 2.0)))),
        ({"recorded_h": [[1.0, 2.0], [0.5]]}, ReplayedDurations(groups=((1.0, 2.0), (0.5,)))),
    ],
)
def test_durations_may_be_quantiles_or_recorded(work, durations):
    assert durations == scenario_of(tables() | {"work": work}).workload.durations


def test_training_may_be_paid_by_tokens():
    found = tables() | {"costs": {"tokens_per_node_s": 100.0}}

    assert ByTokens(tokens_per_node_s=100.0) == scenario_of(found).costs.training


def test_all_mistakes_are_named_at_once_with_their_paths():
    found = tables()
    found["schedul"] = {}
    found["schedule"]["groups_per_bach"] = 4
    found["schedule"]["steps"] = "many"
    found["schedule"]["placement"] = "elastik"
    found["cells"]["standalone"] = 4
    del found["cells"]["count"]
    del found["costs"]["groups_per_node_hour"]
    found["deadlines"]["overall_h"] = 1
    found["faults"] = 7

    wrong = "; ".join(mistakes(found))

    for expected in (
        "schedul: unknown key",
        "schedule.groups_per_bach: unknown key; known here: depth, endless_dispatch",
        "schedule.steps: a whole number, not 'many'",
        "schedule.placement: one of elastic, async, colocate, resumable, not 'elastik'",
        "cells.standalone: a list of whole numbers, not 4",
        "cells.count: missing",
        "costs: give one of groups_per_node_hour, tokens_per_node_s",
        "deadlines: finite",
        "faults: a table, not 7",
    ):
        assert expected in wrong


def test_a_value_of_the_wrong_kind_is_not_missing_too():
    found = tables()
    found["cells"]["count"] = "three"

    assert ["cells.count: a whole number, not 'three'"] == mistakes(found)


def test_the_shape_says_itself_what_is_wrong_with_it():
    found = tables()
    found["schedule"]["extra_dispatch"] = 0.3

    assert any(one.startswith("schedule.extra_dispatch: 0.3") for one in mistakes(found))


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("schedule", {"depth": 2}, "leave one out"),
        ("work", {"quantiles": [[0, 1], [1, 2]]}, "give one of them"),
        ("work", {"between": 2.0}, "between: a share from 0 to 1"),
        ("costs", {"groups_per_node_hour": 0}, "costs.groups_per_node_hour: above 0"),
        ("cells", {"nodes": 0}, "nodes_per_cell: above 0"),
        ("schedule", {"steps": True}, "schedule.steps: a whole number, not True"),
        ("schedule", {"groups_per_batch": 10**7}, "a whole number of at most 1,000,000, not 10000"),
        ("schedule", {"steps": 10**6, "groups_per_batch": 100}, "at most 100,000,000 executions"),
        ("cells", {"count": 10**22}, "cells.count: a whole number of at most 1,000,000, not 1000"),
        ("work", {"sigma": 1e12}, "work.sigma: a number between -100 and 100, not 1000"),
        ("work", {"log_mean": nan}, "work.log_mean: a number between -100 and 100, not nan"),
        ("costs", {"update_s": nan}, "costs.update_s: a number of at most 1e+12, not nan"),
        ("costs", {"update_s": 1e308}, "costs.update_s: a number of at most 1e+12, not 1e+308"),
        ("schedule", {"rescue_s": 10**400}, "schedule.rescue_s: a number of at most 1e+12, not 10"),
    ],
)
def test_what_cannot_be_is_refused(section, changes, expected):
    found = tables()
    found[section] |= changes

    assert any(expected in one for one in mistakes(found))


@pytest.mark.parametrize("seed", [2**64, -1])
def test_a_seed_has_64_bits(seed):
    (line,) = mistakes(tables() | {"seed": seed})

    assert 20260401123000 == scenario_of(tables() | {"seed": 20260401123000}).seed
    assert "seed: a whole number of at most 64 bits, and not below 0" in line


def test_a_simulation_needs_an_end():
    found = tables()
    del found["schedule"]["steps"]

    assert any("a simulation ends" in one for one in mistakes(found))


def test_every_preset_is_a_scenario():
    assert all(isinstance(one, Scenario) for one in TABLE.values())
