"""The same work under each placement: equal machines, equal staleness, and refusals by name."""

import pytest
from tests.simulator.support.scenes import scenario

from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, Elastic
from gyre.simulator.paper import NL2REPO, TABLE, compared
from gyre.simulator.variants import UnfitPlacement, placements

E0 = TABLE["E0"]


def test_the_placement_that_is_given_stays_as_it_is():
    assert E0 is placements(E0)["elastic"]
    assert TABLE["A3"] is placements(TABLE["A3"])["async"]
    assert TABLE["C2"] is placements(TABLE["C2"])["colocate"]


@pytest.mark.parametrize("name", ["E0", "E1", "A0", "C0", "C3"])
def test_all_have_the_same_machines_work_and_mean_staleness(name):
    given = TABLE[name]
    found = placements(given)

    assert {given.num_nodes} == {one.num_nodes for one in found.values()}
    assert {given.shape.mean_staleness} == {one.shape.mean_staleness for one in found.values()}
    assert {given.workload.durations} == {one.workload.durations for one in found.values()}
    assert [Elastic, Async, Colocate] == [type(one.shape.placement) for one in found.values()]


def test_the_paper_s_baselines_are_found_from_its_own_run():
    published = compared(NL2REPO, staleness=1.5)
    found = placements(published["gyre"])

    assert published["async"].shape == found["async"].shape
    assert published["colocate"].shape == found["colocate"].shape


def test_a_pace_that_cannot_be_had_leaves_the_given_one():
    """With a batch of two and a staleness of 0.25 no burst of Colocate has whole steps."""
    given = scenario(
        groups_per_batch=4,
        num_cells=2,
        steps=3,
        dispatch=Boundary(extra_dispatch=0.25),
    )

    assert given.shape.dispatch == placements(given)["colocate"].shape.dispatch


def test_one_cell_cannot_be_split():
    found = placements(scenario())

    assert isinstance(found["async"], UnfitPlacement)
    assert "nobody serves" in found["async"].reason


def test_colocate_under_continuous_dispatch_is_refused_with_its_reason():
    given = scenario(num_cells=3, dispatch=Continuous(depth=1))

    assert "never drains" in placements(given)["colocate"].reason
