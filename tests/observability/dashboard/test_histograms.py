"""Bins of round widths that hold every value once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.observability.dashboard.series import BINS, histogram, quantile, round_up, round_up_time

KINDS = ("completed", "timed-out")
VALUES = st.lists(
    st.tuples(st.floats(0, 1e7, allow_nan=False), st.sampled_from(KINDS)), min_size=1, max_size=200
)


@given(VALUES)
def test_every_value_is_in_one_bin(values):
    found = histogram(values, kinds=KINDS)
    counts = list(found["counts"].values())

    assert len(values) == found["num"] == sum(map(sum, counts))
    assert {len(found["edges"]) - 1} == {len(bins) for bins in counts}
    assert len(found["edges"]) - 1 <= BINS
    assert found["is_open"] == (found["max"] >= found["edges"][-1])


@given(VALUES)
def test_bins_below_the_last_hold_what_lies_between_their_edges(values):
    found = histogram(values, kinds=KINDS)
    edges = found["edges"]
    for place in range(len(edges) - 2):
        inside = sum(edges[place] <= size < edges[place + 1] for size, _ in values)

        assert inside == sum(bins[place] for bins in found["counts"].values())


def test_the_longest_share_the_last_bin():
    values = [(float(one), "completed") for one in range(400)] + [(1e6, "timed-out")]
    found = histogram(values, kinds=KINDS)

    assert (20.0, True, 1e6) == (found["edges"][1], found["is_open"], found["max"])
    assert 1 == found["counts"]["timed-out"][-1]


def test_nothing_has_no_bins():
    assert (0, [], None) == tuple(
        histogram([], kinds=KINDS)[name] for name in ("num", "edges", "mean")
    )


@pytest.mark.parametrize(
    ("width", "expected"), [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (60, 100.0)]
)
def test_widths_are_round(width, expected):
    assert expected == pytest.approx(round_up(width))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, 1), (0.03, 0.05), (1.5, 2), (16, 30), (31, 60), (500, 600), (4000, 7200), (1e5, 108000)],
)
def test_widths_of_time_are_those_of_clocks(seconds, expected):
    assert expected == pytest.approx(round_up_time(seconds))


@pytest.mark.parametrize(("part", "expected"), [(0.0, 1), (0.5, 3), (0.95, 4), (1.0, 4)])
def test_a_quantile_is_one_of_the_values(part, expected):
    assert expected == quantile([1, 2, 3, 4], part)
