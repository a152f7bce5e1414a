"""Policies beyond the paper: each changes what it says, and none the dispatch."""

import pytest
from tests.simulator.support.scenes import scenario

from gyre.scheduler.policies import LongestFirst
from gyre.simulator.paper import TABLE
from gyre.simulator.variants import (
    POLICIES,
    cheaper_training,
    decode_bound,
    longest_first,
    overcommitted,
    slots_released,
    together,
)
from gyre.simulator.workload import ByGroups, ByTokens, Costs
from gyre.simulator.world import run

E0 = TABLE["E0"]


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_changes_the_dispatch_or_the_work(name):
    changed = POLICIES[name](E0)

    assert (E0.shape.dispatch, E0.shape.steps_per_burst) == (
        changed.shape.dispatch,
        changed.shape.steps_per_burst,
    )
    assert E0.shape.mean_staleness == changed.shape.mean_staleness
    assert E0.workload == changed.workload
    assert (name == "as published") == (changed == E0)


def test_each_change_reaches_its_place():
    assert 1.5 == overcommitted(E0, factor=1.5).shape.overcommit
    assert LongestFirst() == longest_first(E0, sigma=0.3).shape.launch_order
    assert 0.3 == longest_first(E0, sigma=0.3).estimates.sigma
    assert not slots_released(E0).shape.evaluation_holds_slot
    assert 0.4 == decode_bound(E0, share=0.4).workload.decode.share


@pytest.mark.parametrize("kind", [ByGroups, ByTokens])
def test_cheaper_training_is_faster_by_its_factor(kind):
    rate = {ByGroups: "groups_per_node_hour", ByTokens: "tokens_per_node_s"}[kind]
    one = scenario(costs=Costs(training=kind(**{rate: 2.0})))

    assert 2.5 == getattr(cheaper_training(one, factor=1.25).costs.training, rate)


def test_changes_are_made_in_order():
    doubled = together(lambda one: overcommitted(one, factor=1.25), slots_released)

    assert slots_released(overcommitted(E0, factor=1.25)) == doubled(E0)


def test_a_slot_that_is_overcommitted_is_free_only_where_decoding_is():
    """Four executions of an hour on two slots: together at once, or each at half the speed."""
    four = {"executions_per_group": 4, "cell_capacity": 2, "overcommit": 2.0}
    plain = scenario([(1.0,) * 4], **four | {"overcommit": 1.0})
    crowded = scenario([(1.0,) * 4], **four)

    assert 3.0 == pytest.approx(run(plain).hours)
    assert 2.0 == pytest.approx(run(crowded).hours)
    # At share 0.8 and twice the load, an hour's work takes 0.2 + 1.6 hours.
    assert 2.8 == pytest.approx(run(decode_bound(crowded, share=0.8)).hours)
