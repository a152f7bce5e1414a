"""Queries by seed: each once an epoch, none twice at once (SPEC 1.1)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.batching.task_sampler import TaskSampler
from gyre.types.errors import InternalError


def test_an_epoch_has_every_query_once_in_an_order_of_its_own():
    queries = TaskSampler(8, seed=3)
    epochs = []
    for _ in range(3):
        drawn = [queries.draw() for _ in range(8)]
        for one in drawn:
            queries.done(one)
        epochs.append(drawn)

    assert [list(range(8))] * 3 == [sorted(one) for one in epochs]
    assert 3 == len({tuple(one) for one in epochs})
    assert 24 == queries.num_drawn


def test_one_seed_is_one_order():
    first, again, other = (TaskSampler(50, seed=seed) for seed in (1, 1, 2))
    drawn = [first.draw() for _ in range(50)]

    assert drawn == [again.draw() for _ in range(50)]
    assert drawn != [other.draw() for _ in range(50)]


@given(st.integers(1, 9), st.integers(0, 3), st.lists(st.integers(0, 8), max_size=60))
def test_no_query_is_out_twice_while_another_could_be(count, seed, plan):
    """Each number of the plan says how many are out before the next is drawn."""
    queries = TaskSampler(count, seed=seed)
    out: list[int] = []
    for most in plan:
        while len(out) > most:
            queries.done(out.pop(0))
        drawn = queries.draw()
        assert drawn not in out or len(set(out)) == count
        out.append(drawn)


def test_what_is_passed_over_comes_in_its_epoch_all_the_same():
    queries = TaskSampler(3, seed=0)
    kept = queries.draw()
    counts = Counter({kept: 1})
    for _ in range(8):
        drawn = queries.draw()
        counts[drawn] += 1
        queries.done(drawn)
        if counts.total() == 5:
            queries.done(kept)

    assert 9 == counts.total()
    assert max(counts.values()) - min(counts.values()) <= 1


def test_more_queries_out_than_there_are_are_drawn_again():
    queries = TaskSampler(2, seed=0)

    assert Counter({0: 3, 1: 3}) == Counter(queries.draw() for _ in range(6))


def test_what_is_not_out_cannot_be_done():
    with pytest.raises(InternalError, match="query 1: done, and not out"):
        TaskSampler(2, seed=0).done(1)


def test_nothing_cannot_be_drawn_from():
    with pytest.raises(InternalError, match="there are none"):
        TaskSampler(0, seed=0)
