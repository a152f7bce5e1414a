"""The paper's report: what was fitted, what was predicted, and any order that came out wrong."""

import json
from dataclasses import replace

import pytest
from tests.simulator.support.scenes import scenario

from gyre.simulator.paper import ABLATION_H, TABLE
from gyre.simulator.report_paper import (
    SHARES,
    CalibrationRow,
    Comparison,
    PaperReport,
    by_scenario,
    scenarios,
    seeded,
)
from gyre.simulator.variants import POLICIES
from gyre.simulator.world import run

RECORD = run(scenario())


def taking(hours):
    return replace(RECORD, steps=(replace(RECORD.steps[-1], at_s=hours * 3600),))


@pytest.fixture
def runs():
    """Hours as published, and everything else taking as long as E0."""
    found = {key: [taking(ABLATION_H["E0"])] for key in scenarios()}
    return found | {("table", name): [taking(hours)] for name, hours in ABLATION_H.items()}


def test_everything_the_report_needs_is_run():
    keys = list(scenarios())

    assert list(TABLE) == [key[1] for key in keys if key[0] == "table"]
    assert 9 == sum(key[0] == "long" for key in keys)
    assert len(POLICIES) * len(SHARES) == sum(key[0] == "policy" for key in keys)


def test_hours_as_published_have_no_error_and_the_paper_s_order(runs):
    report = PaperReport.of(runs)
    lines = "\n".join(report.lines())

    assert 0.0 == pytest.approx(report.comparison.mean_error)
    assert 55 == report.num_apart + len(report.close)
    assert "mean error 0.0%; of the 7 rows that were predicted 0.0%" in lines
    assert f"{report.num_apart} pairs further than 5% apart: all ordered as in the paper" in lines
    assert 4 == lines.count("  fitted")
    assert 7 == lines.count("  predicted")
    assert "E2 / E0  published 1.022  simulated 1.022" in lines


def test_a_pair_in_the_wrong_order_is_named(runs):
    runs["table", "E0"] = [taking(20.0)]
    report = PaperReport.of(runs)
    lines = "\n".join(report.lines())

    assert "ordered otherwise: " in lines
    assert "E0 < C2" in lines
    assert ["E0", "C2"] in json.loads(json.dumps(report.as_json()))["misordered"]


def test_speed_ups_and_policies_are_ratios_of_hours(runs):
    for name in ("gyre", "async", "colocate"):
        runs["long", "nl2repo, staleness 1", name] = [taking(10.0 if name == "gyre" else 15.0)]
    for share in SHARES:
        runs["policy", "longest first", f"{share:g}"] = [taking(ABLATION_H["E0"] / (2 - share))]
    report = PaperReport.of(runs)
    found = {one.name: one for one in report.policies}
    (first, *_) = report.speed_ups

    assert ("nl2repo, staleness 1", "async", 1.5) == (first.where, first.baseline, first.simulated)
    assert [2.0, 1.8, 1.6, 1.4, 1.2] == pytest.approx(
        [ratio for _, ratio in found["longest first"].faster]
    )
    assert {1.0} == {ratio for _, ratio in found["as published"].faster}
    assert any("1.50x  1.42x to 1.53x" in line for line in report.lines())


def test_the_report_fits_a_screen_and_is_plain_json(runs):
    report = PaperReport.of({key: [*one, *one] for key, one in runs.items()})
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))

    assert [] == [line for line in report.lines() if len(line) > 80]
    assert (1, 2) == (found["format"], found["num_seeds"])
    assert {"fitted": 4, "predicted": 7} == {
        "fitted": sum(row["is_fitted"] for row in found["rows"]),
        "predicted": sum(not row["is_fitted"] for row in found["rows"]),
    }


def shorter(one):
    """The same with one burst of small batches, which takes no time."""
    small = replace(
        one.shape, groups_per_batch=2, executions_per_group=2, steps=one.shape.steps_per_burst
    )
    return replace(one, shape=small)


def test_questions_are_answered_by_running_them():
    """Short forms of the real scenarios, so that all of them run."""
    asked = {key: shorter(one) for key, one in scenarios().items()}
    records = [run(one) for one in seeded(asked, [3, 4])]
    report = PaperReport.of(by_scenario(asked, records))
    row = next(one for one in report.comparison.rows if one.name == "E1")

    expected = [run(replace(shorter(TABLE["E1"]), seed=seed)).hours for seed in (3, 4)]
    assert expected == list(row.simulated_h)
    assert 2 == report.num_seeds
    assert list(POLICIES) == [one.name for one in report.policies]


def test_pairs_in_the_wrong_order_are_found_if_they_are_far_enough_apart():
    def row(name, published, simulated):
        return CalibrationRow(
            name=name, published_h=published, simulated_h=(simulated,), is_fitted=False
        )

    found = Comparison(rows=(row("a", 10.0, 12.0), row("b", 10.4, 11.0), row("c", 20.0, 11.5)))

    assert (("a", "c"),) == found.misordered(apart=0.05)
    assert (("a", "b"), ("a", "c")) == found.misordered(apart=0.01)
