"""Time in which somebody waited."""

from hypothesis import given
from hypothesis import strategies as st

from gyre.aio import WaitTimer


def test_waits_that_overlap_count_once():
    waits = WaitTimer()
    for now, change in ((1.0, waits.begin), (2.0, waits.begin), (4.0, waits.end), (5.0, waits.end)):
        change(now)

    assert 4.0 == waits.total_s(9.0)


def test_a_wait_that_lasts_counts_until_now():
    waits = WaitTimer()
    waits.begin(1.0)
    waits.begin(3.0)

    assert 6.0 == waits.total_s(7.0)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50))))
def test_the_total_is_the_length_of_the_union(spans):
    waits = WaitTimer()
    changes = [(start, 1) for start, _ in spans] + [(start + long, 0) for start, long in spans]
    # Whoever comes in the moment in which another leaves comes first.
    for now, begins in sorted(changes, key=lambda one: (one[0], -one[1])):
        (waits.begin if begins else waits.end)(now)
    covered = {second for start, long in spans for second in range(start, start + long)}

    assert len(covered) == waits.total_s(1_000)
