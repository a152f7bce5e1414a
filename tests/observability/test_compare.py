"""A recorded run's work under other placements, against simulating that work there directly."""

from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, journal, simulated, told
from tests.simulator.support.scenes import scenario

from gyre.observability.terminal.summary import summary
from gyre.observability.what_if import compared
from gyre.scheduler.policies import Async, Boundary, Colocate
from gyre.simulator.world import run

AGAIN = 0.03
"""Relative difference in time between a run and the same work simulated again: evaluations are
drawn anew, and training is timed by when groups were pulled."""


def minutes(shape):
    return run(replace(SMALL, shape=shape)).hours * 60


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "journal"
    return journal(path, SMALL, told(simulated(SMALL)[1]))


@pytest.fixture(scope="module")
def rows(reading):
    return {one.placement: one for one in compared(reading)}


def test_elastic_comes_first_and_takes_as_long_as_it_did(rows):
    assert ["elastic", "async", "colocate"] == list(rows)
    assert rows["elastic"].minutes == pytest.approx(minutes(SMALL.shape), rel=AGAIN)
    assert (12, "phi 0.5, mu 3") == (rows["elastic"].steps, rows["elastic"].how)


def test_async_has_the_best_of_its_splits(rows):
    splits = {
        training: minutes(
            replace(
                SMALL.shape,
                num_cells=training,
                standalone_capacities=(40,) * (4 - training),
                steps_per_burst=1,
                dispatch=Boundary(extra_dispatch=1.5),
                placement=Async(streaming=False),
            )
        )
        for training in (1, 2, 3)
    }
    best = min(splits, key=splits.get)

    assert f"{best} train, {4 - best} serve (best); phi 1.5, mu 1" == rows["async"].how
    assert rows["async"].minutes == pytest.approx(splits[best], rel=AGAIN)


def test_colocate_dispatches_whole_bursts(rows):
    together = replace(
        SMALL.shape,
        steps_per_burst=4,
        dispatch=Boundary(extra_dispatch=0),
        placement=Colocate(streaming=False),
    )

    assert "phi 0, mu 4" == rows["colocate"].how
    assert rows["colocate"].minutes == pytest.approx(minutes(together), rel=AGAIN)


def test_the_page_shows_what_was_compared(reading, rows):
    page = summary(reading, tuple(rows.values()))

    assert f"{rows['async'].minutes:,.2f}" in page
    assert "Elastic takes " in page
    assert "live " in page


def test_one_cell_has_nothing_to_split_and_says_so(tmp_path):
    one = scenario(steps=2)
    rows = compared(journal(tmp_path / "journal", one, simulated(one)[1]))

    assert [True, False, True] == [row.minutes is not None for row in rows]
    assert "nobody serves" in rows[1].how


def test_a_run_with_a_fixed_split_is_compared_with_its_machines_pooled(tmp_path):
    shape = replace(SMALL.shape, placement=Async(), num_cells=2, standalone_capacities=(40, 40))
    one = replace(SMALL, shape=shape)
    rows = compared(journal(tmp_path / "journal", one, simulated(one)[1]))

    assert ["elastic", "async", "colocate"] == [row.placement for row in rows]
    assert all(row.minutes is not None for row in rows)
    assert rows[1].minutes >= rows[0].minutes


def test_a_run_that_ended_within_its_first_burst_cannot_be_simulated_and_says_why(tmp_path):
    _, events = simulated(SMALL)
    reading = journal(tmp_path / "journal", SMALL, events[:50])
    (row,) = compared(reading)

    assert (None, True) == (row.minutes, "ends within its first burst" in row.how)
    assert "ends within its first burst" in " ".join(summary(reading, (row,)).split())
