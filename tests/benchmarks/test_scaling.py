"""The page about scaling says what its script computes from the results, and nothing else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.scale.needs import SHARD_SHARE, Needs, NoResult, Units
from benchmarks.scale.sizes import SIZES
from benchmarks.scale.tables import PAGE, tables, with_tables

from benchmarks import compare


@pytest.fixture(scope="module")
def units() -> Units:
    return Units(compare.load_all())


def test_its_tables_are_those_of_the_newest_results(units: Units) -> None:
    page = PAGE.read_text()

    assert page == with_tables(page, tables(units))


@pytest.mark.slow
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


def measured(name: str, **samples: dict[str, float]) -> compare.Result:
    """A result of one run each."""
    runs: dict[str, list[dict[str, Any]]] = {
        case.replace("_", " "): [sample] for case, sample in samples.items()
    }
    return compare.Result(
        path=Path(name), name=name, machine="m", at="now", samples=runs, settings={}
    )


def of_controller(live: int, cpu_s: float) -> dict[str, dict[str, float]]:
    """Everything in proportion to how many live, but an event."""
    sample = {"cpu_s": cpu_s, "calls": 1, "look_cpu_s": cpu_s / 10, "bytes_per_execution": 1_000}
    return {
        f"event, {live} live": {"cpu_s": 0.001, "calls": 10},
        f"recall, {live} live": sample,
        f"adopt, {live} live": sample,
    }


ROUND = (
    measured("short", gyre={"cpu_s": 1.0, "calls": 1_000}),
    measured("long", gyre={"cpu_s": 20.0, "calls": 1_000}),
    measured("held", gyre={"bytes_per_token": 30}),
    measured("scale-written", call_log={"bytes_per_token": 10}, status={"bytes_per_execution": 50}),
    measured(
        "live-many", run={"journal_bytes": 20_000, "executions": 100, "controller_cpu_s": 2.0}
    ),
    measured("scheduler", **{"live-102400": {"cpu_s": 0.2, "calls": 1}}),
    measured(
        "scale-controller",
        **of_controller(512, 0.512),
        **of_controller(2_048, 2.048),
        **of_controller(8_192, 8.192),
    ),
)
"""Results whose numbers are easy to calculate with."""


def needs_of(**about: float) -> Needs:
    size: Any = SimpleNamespace(**about)
    return Needs(size=size, units=Units(ROUND))


def test_a_controller_is_as_busy_as_its_executions_events_and_looks_make_it() -> None:
    """20 ms an execution, 0.1 + 0.1 ms an event, and 0.1 ms a look at each, once a second."""
    one = needs_of(live=4_000, executions_s=0.5, events_s=10.0)

    assert 0.5 * 0.02 + 10 * 0.0002 + 4_000 * 0.0001 == pytest.approx(one.controller_cores)
    assert 4_000 * 2_000 == one.controller_bytes
    assert 4_000 * 0.002 == pytest.approx(one.units.recalled_s(4_000))


def test_what_fewer_executions_take_than_were_measured_is_no_less_than_the_least() -> None:
    units = Units(ROUND)

    assert units.recalled_s(512) == units.recalled_s(64) == pytest.approx(2 * 0.512)
    assert 2 * 10.0 == pytest.approx(units.recalled_s(10_000))


def test_a_proxy_is_as_busy_as_calls_of_that_length_make_it() -> None:
    """A call takes 1 ms and, with the 190,000 tokens of the long history, 20."""
    one = needs_of(live=100, executions_s=0.5)
    units = one.units
    call_s = 0.001 + 0.019 * units.context_tokens / 190_000

    assert 0.5 * units.calls * call_s == pytest.approx(one.proxy_cores)
    assert 100 * units.unique_tokens / 2 * 30 == one.proxy_bytes


def test_what_is_written_in_a_day_is_what_executions_of_a_day_write() -> None:
    one = needs_of(executions_s=0.5)

    assert 0.5 * 86_400 * 200 == one.journal_bytes_day
    assert 0.5 * 86_400 * one.units.unique_tokens * 10 == one.log_bytes_day


def test_weights_go_to_all_cells_but_one_and_gradients_come_from_those_that_trained() -> None:
    """Through the two nodes of the core, at 50 GB/s each."""
    one = needs_of(cells=4, nodes_per_cell=2, weight_bytes=1e11, parameters=5e10, cells_in_step=3.0)

    assert (3e11, 3.0) == (one.published_bytes, one.published_s)
    assert (4e11, 4.0) == (one.gradient_bytes, one.gradient_s)


def test_what_was_never_measured_is_not_guessed() -> None:
    units = Units(ROUND[:1])

    with pytest.raises(NoResult, match="scale-written: call log bytes_per_token"):
        _ = units.log_bytes_per_token
