"""Rewards of a group become advantages (SPEC 8.1, 6.3)."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.batching.advantages import advantages
from gyre.types.errors import InternalError

REWARDS = st.lists(st.none() | st.floats(-1e6, 1e6, allow_subnormal=False), max_size=9)


@given(REWARDS, st.booleans())
def test_advantages_are_distances_from_the_mean_in_deviations(rewards, divide_by_std):
    found = advantages(rewards, divide_by_std=divide_by_std)
    valid = np.array([one for one in rewards if one is not None], dtype=np.float64)
    places = [one is None for one in rewards]

    assert places == [one is None for one in found]
    if len(valid) < 2 or valid.max() == valid.min():
        assert {0.0} >= {one for one in found if one is not None}
        return
    expected = valid - valid.mean()
    largest = np.abs(valid).max()
    if divide_by_std and valid.std() < 1e-6 * largest:
        return  # the plain version has lost its digits
    scale = valid.std() if divide_by_std else 1.0
    assert (expected / scale).tolist() == pytest.approx(
        [one for one in found if one is not None], rel=1e-9, abs=1e-9 * max(1.0, largest / scale)
    )


@pytest.mark.parametrize("divide_by_std", [True, False])
def test_equal_rewards_give_exactly_nothing(divide_by_std):
    """L08: 0.1 three times has a mean that is not 0.1 when summed in floats."""
    assert [0.0] * 3 == advantages([0.1] * 3, divide_by_std=divide_by_std)
    assert [0.0, None, 0.0] == advantages([0.0, None, -0.0], divide_by_std=divide_by_std)


def test_excluded_executions_are_out_of_mean_and_deviation():
    without = advantages([1.0, 0.0, 0.0, 1.0], divide_by_std=True)
    among = advantages([1.0, None, 0.0, 0.0, None, 1.0], divide_by_std=True)

    assert [1.0, -1.0, -1.0, 1.0] == without
    assert [1.0, None, -1.0, -1.0, None, 1.0] == among


@pytest.mark.parametrize("rewards", [[], [None], [3.0], [None, 3.0, None]])
def test_one_reward_alone_is_compared_with_nothing(rewards):
    expected = [None if one is None else 0.0 for one in rewards]

    assert expected == advantages(rewards, divide_by_std=True)
    assert expected == advantages(rewards, divide_by_std=False)


def test_the_deviation_is_of_the_population_and_has_no_epsilon():
    scaled = advantages([1e-12, 0.0, 0.0, 0.0], divide_by_std=True)

    assert [3**0.5, *[-(3**-0.5)] * 3] == pytest.approx(scaled, rel=1e-15)
    assert [6.0, -2.0, -2.0, -2.0] == advantages([8.0, 0.0, 0.0, 0.0], divide_by_std=False)


@pytest.mark.parametrize("unit", [5e-324, 1e-300, 1e-9, 1.0, 1e300])
def test_no_scale_of_rewards_changes_a_divided_advantage(unit):
    found = advantages([3 * unit, unit, 0.0], divide_by_std=True)

    assert [1.0, -1.0] == advantages([unit, 0.0], divide_by_std=True)
    assert advantages([3.0, 1.0, 0.0], divide_by_std=True) == pytest.approx(found, rel=1e-14)


@given(REWARDS, st.randoms(use_true_random=False))
def test_no_order_of_executions_changes_an_advantage(rewards, random):
    order = random.sample(range(len(rewards)), len(rewards))
    once = advantages(rewards, divide_by_std=True)
    again = advantages([rewards[at] for at in order], divide_by_std=True)

    assert [once[at] for at in order] == again


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_reward_that_is_no_number_is_a_bug(bad):
    with pytest.raises(InternalError, match="rewards are"):
        advantages([1.0, bad], divide_by_std=True)
