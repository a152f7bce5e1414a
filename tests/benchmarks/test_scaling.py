"""The page about scaling says what its script computes from the results, and nothing else."""

import pytest
from benchmarks.scale.needs import SHARD_SHARE, Needs, Units
from benchmarks.scale.sizes import SIZES
from benchmarks.scale.tables import PAGE, tables, with_tables

from benchmarks import compare


@pytest.fixture(scope="module")
def units() -> Units:
    return Units(compare.load_all())


def test_its_tables_are_those_of_the_newest_results(units: Units) -> None:
    page = PAGE.read_text()

    assert page == with_tables(page, tables(units))


def test_shards_are_as_many_as_keep_each_below_its_share(units: Units) -> None:
    for size in SIZES:
        one = Needs(size=size, units=units)
        assert one.proxy_cores <= SHARD_SHARE * one.shards
        assert one.shards == 1 or one.proxy_cores > SHARD_SHARE * (one.shards - 1)


def test_eight_times_the_machines_make_eight_times_the_calls(units: Units) -> None:
    """The same paces per cell, or the simulated runs are not of one kind."""
    _, small, large, _ = (Needs(size=size, units=units) for size in SIZES)

    assert 8 == large.size.cells // small.size.cells
    assert 8 == pytest.approx(large.calls_s / small.calls_s, rel=0.05)


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected <!-- sizes: begin -->"):
        with_tables("no marks", {"sizes": "| |"})
