"""Bounds that no run beats, and that a run with nothing in its way reaches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.worlds import World, at_random, log_normal, oldest_first

from gyre.simulator.theory import (
    Link,
    elastic_packing_bound,
    latency_bounds,
    split_packing_bound,
)


def links(seen):
    return [
        Link(after=one.admitted_after, consumed_in=one.consumed_in, duration_s=one.duration)
        for one in seen.consumed
    ]


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 6),
    st.sampled_from([oldest_first, at_random]),
    st.integers(0, 1000),
)
def test_a_run_whose_groups_never_wait_is_its_longest_chain(batch, steps, extra, choose, seed):
    world = World(
        batch=batch,
        depth=batch * steps + extra,
        steps=steps,
        draw=log_normal(1.0),
        training_rate=5.0,
        choose=choose,
    )
    seen = world.run(8, seed=seed)
    burst_s = batch * steps / 5.0
    bounds = latency_bounds(links(seen), num_bursts=8, burst_s=burst_s, last_group_s=burst_s)

    assert bounds == pytest.approx(seen.published_at)


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=12), st.integers(1, 4))
def test_no_list_schedule_beats_packing_or_its_longest_chain(durations, slots):
    free = [0.0] * slots
    for duration in durations:
        at = free.index(min(free))
        free[at] += duration
    whole = [Link(after=0, consumed_in=1, duration_s=one) for one in durations]
    (_, chain) = latency_bounds(whole, num_bursts=1, burst_s=0.0, last_group_s=0.0)

    assert max(free) >= sum(durations) / slots - 1e-9
    assert max(free) >= chain
    assert chain == max(durations)


def test_a_chain_runs_over_bursts():
    """The slow group of burst 3 was admitted after burst 1, so burst 2 is hidden behind it."""
    chain = [
        Link(after=0, consumed_in=1, duration_s=2.0),
        Link(after=1, consumed_in=2, duration_s=1.0),
        Link(after=1, consumed_in=3, duration_s=9.0),
    ]

    assert [0.0, 2.5, 4.0, 12.0] == latency_bounds(
        chain, num_bursts=3, burst_s=1.5, last_group_s=0.5
    )


def test_a_burst_takes_its_time_even_if_everything_is_ready():
    assert [0.0, 3.0, 6.0] == latency_bounds([], num_bursts=2, burst_s=3.0, last_group_s=0.0)


def test_cells_that_serve_and_train_pack_both_kinds_of_work():
    """100 slot-seconds in cells of 5 are 20 cell-seconds, and 20 more are trained."""
    work = {"slot_s": 100.0, "training_cell_s": 20.0}

    assert 10.0 == elastic_packing_bound(**work, num_cells=4, cell_capacity=5)
    assert 8.0 == elastic_packing_bound(**work, num_cells=4, cell_capacity=5, standalone_capacity=5)
    assert 20.0 == elastic_packing_bound(
        **work, num_cells=1, cell_capacity=5, standalone_capacity=100
    )


def test_a_fixed_split_is_bound_by_its_worse_half_and_never_below_the_elastic_one():
    work = {"slot_s": 100.0, "training_cell_s": 20.0}
    splits = [
        split_packing_bound(**work, num_training_cells=k, capacity=5 * (4 - k)) for k in (1, 2, 3)
    ]

    assert [20.0, 10.0, 20.0] == splits
    assert min(splits) >= elastic_packing_bound(**work, num_cells=4, cell_capacity=5)
