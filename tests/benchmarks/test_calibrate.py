"""Fits that find what was planted."""

from dataclasses import replace

import pytest
from benchmarks.sim.calibrate import DRIFT, TRAINING_RATE, compare, fit
from tests.simulator.support.scenes import scenario

from gyre.simulator.workload import Drift
from gyre.types.errors import ConfigError


def small(**changes):
    """A run whose time follows its training rate and its drift."""
    shape = {"groups_per_batch": 2, "cell_capacity": 4, "steps": 6, "executions_per_group": 2}
    drift = Drift(to=0.9, first_step=1, last_step=4)
    one = scenario([(1.0, 2.0), (0.5, 1.5), (1.0, 0.75)], drift=drift, **shape)
    return replace(one, **changes)


def planted(one, *, rate, drift):
    return DRIFT.put(TRAINING_RATE.put(one, rate), drift)


def test_a_fit_finds_the_numbers_that_made_the_hours():
    rows = {"one": small(), "two": small(nodes_per_cell=3.0)}
    truth = {name: planted(one, rate=2.3, drift=0.84) for name, one in rows.items()}
    published = {row.name: row.mean_h for row in compare(truth, _zero(truth), seeds=[0]).rows}

    found = fit(rows, published, parameters=(TRAINING_RATE, DRIFT), seeds=[0])

    values = dict(found.values)
    assert 2.3 == pytest.approx(values["groups_per_node_hour"], abs=0.05)
    assert 0.84 == pytest.approx(values["drift.to"], abs=0.01)
    assert found.fitted_error < 0.005


def _zero(rows):
    return dict.fromkeys(rows, 1.0)


def test_rows_that_were_not_fitted_are_told_apart():
    rows = {"one": small(), "two": small(nodes_per_cell=3.0)}
    hours = {row.name: row.mean_h for row in compare(rows, _zero(rows), seeds=[0]).rows}
    published = {"one": hours["one"], "two": hours["two"] * 1.25}

    found = compare(rows, published, seeds=[0, 1], fitted=["one"])

    assert [True, False] == [row.is_fitted for row in found.rows]
    assert 0.1 == pytest.approx(found.mean_error)
    assert 0.2 == pytest.approx(found.predicted_error)
    assert all(2 == len(row.simulated_h) for row in found.rows)


def test_a_fit_without_published_hours_is_refused():
    with pytest.raises(ConfigError, match="no published hours to fit two"):
        fit({"two": small()}, {"one": 1.0}, parameters=(DRIFT,), seeds=[0])
