"""Few rows for many, and time inside of windows."""

from hypothesis import given
from hypothesis import strategies as st

from gyre.observability.dashboard.series import thinned, window
from gyre.observability.history.cells import Intervals

ROWS = st.lists(st.tuples(st.floats(0, 1000), st.integers(-50, 50)), min_size=1, max_size=300).map(
    sorted
)


def at(row):
    return row[0]


def value(row):
    return row[1]


@given(ROWS, st.integers(4, 100))
def test_what_is_kept_was_there_in_its_order_with_ends_and_peaks(rows, most):
    kept = thinned(rows, at, [value], most=most)
    places = iter(rows)

    assert len(kept) <= max(most, 4)
    assert all(one in places for one in kept)
    assert (rows[0], rows[-1]) == (kept[0], kept[-1])
    assert (max(map(value, rows)), min(map(value, rows))) == (
        max(map(value, kept)),
        min(map(value, kept)),
    )


@given(ROWS, st.floats(0, 1000), st.floats(0, 1000))
def test_a_window_has_what_is_inside_and_what_held_before(rows, one, other):
    since_s, until_s = sorted((one, other))
    found = list(window(rows, at, since_s=since_s, until_s=until_s))
    inside = [row for row in rows if since_s < row[0] <= until_s]
    before = [row for row in rows if row[0] <= since_s]

    assert [*before[-1:], *inside] == found


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), max_size=30),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_time_inside_of_a_window_is_what_a_sum_over_all_gives(ends, one, other):
    since_s, until_s = sorted((one, other))
    stretches = Intervals()
    intervals = sorted((end_s, end_s - seconds) for end_s, seconds in ends)
    for end_s, begin_s in intervals:
        stretches.add(begin_s, end_s)
    expected = sum(
        max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for end_s, begin_s in intervals
    )

    assert abs(expected - stretches.inside(since_s, until_s)) < 1e-6
