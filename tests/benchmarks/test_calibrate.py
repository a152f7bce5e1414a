"""Fits that find what was planted."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.sim.calibrate import DRIFT, TRAINING_RATE, compare, fit, fit_durations
from tests.simulator.scenes import scenario

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


@pytest.mark.parametrize("deadline_h", [None, 2.0])
def test_durations_are_fitted_from_recorded_ones(deadline_h):
    """The truth is known; a deadline cuts a third of what was recorded."""
    rng = np.random.default_rng(1)
    shared = rng.standard_normal((600, 1)) * np.sqrt(0.4)
    normal = shared + rng.standard_normal((600, 16)) * np.sqrt(0.6)
    hours = np.exp(0.5 + 0.4 * normal)
    recorded = np.minimum(hours, np.inf if deadline_h is None else deadline_h)

    found = fit_durations(recorded.tolist(), deadline_h=deadline_h)

    assert 0.5 == pytest.approx(found.durations.log_mean, abs=0.03)
    assert 0.4 == pytest.approx(found.durations.sigma, abs=0.02)
    assert 0.4 == pytest.approx(found.between, abs=0.05)


def test_a_fit_that_ignores_the_deadline_is_off():
    rng = np.random.default_rng(1)
    hours = np.minimum(np.exp(0.5 + 0.4 * rng.standard_normal((600, 16))), 2.0).tolist()

    assert abs(fit_durations(hours).durations.sigma - 0.4) > 0.05


@pytest.mark.parametrize("hours", [[[1.0] * 4], [[1.0] * 8, [0.0] * 8]])
def test_too_few_or_impossible_durations_are_refused(hours):
    with pytest.raises(ConfigError, match="at least 8, all above 0"):
        fit_durations(hours)
