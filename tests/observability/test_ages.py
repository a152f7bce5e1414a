"""Ages of groups that are consumed in the order of their admission."""

from fractions import Fraction

import pytest
from tests.simulator.support.scenes import shape

from gyre.observability.staleness import in_a_whole_run, in_order
from gyre.scheduler.policies import Boundary, Continuous


@pytest.mark.parametrize("extra", [0, 0.5, 1, 2.5])
@pytest.mark.parametrize("burst", [1, 2, 3])
def test_the_mean_is_the_one_that_dispatch_decides(extra, burst):
    one = shape(
        groups_per_batch=4,
        steps=6 * burst,
        steps_per_burst=burst,
        dispatch=Boundary(extra_dispatch=extra),
    )
    found = in_order(one, steps=one.steps)

    assert one.steps * 4 == found.total()
    ages = sum(age * many for age, many in found.items())
    assert in_a_whole_run(one) == Fraction(ages, found.total())


def test_the_first_steps_are_fresh_and_later_ones_have_waited():
    """Six groups at first, four at each of two later publications, four consumed a step."""
    one = shape(groups_per_batch=4, steps=None, dispatch=Boundary(extra_dispatch=0.5))

    assert {0: 4 + 2 + 2, 1: 2 + 2} == dict(in_order(one, steps=3))


def test_where_admission_follows_readiness_nobody_knows():
    one = shape(num_cells=2, groups_per_batch=1, steps=None, dispatch=Continuous(depth=1))

    assert in_order(one, steps=3) is None
