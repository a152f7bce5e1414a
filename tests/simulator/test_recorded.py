"""A run that was journaled: replayed to the same orders, and simulated again as it was or not."""

from dataclasses import replace

import pytest
from tests.simulator.support.scenes import scenario, small_run

from gyre.journal.journal import MAGIC, read, write
from gyre.scheduler.messages import ExecutionClosed, ExecutionTerminated, Published
from gyre.scheduler.policies import Async, Boundary, Colocate
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.simulator.from_journal import header_of, recorded
from gyre.simulator.scenario import Estimates, FaultRates, scenario_of
from gyre.simulator.workload import (
    Failures,
    ReplayedDurations,
)
from gyre.simulator.world import EventLog, run
from gyre.types.errors import ConfigError
from gyre.types.outcomes import Ending

AGAIN = 0.02
"""Relative difference in hours between a run and the same run simulated again. It is not 0
because evaluations are drawn anew, and because training is timed by when groups were pulled."""

SMALL = small_run(groups_per_node_hour=4.0, nodes_per_cell=2)
"""Like the paper's E0, in small."""
PLACES = {
    "async": (
        {"placement": Async(), "num_cells": 2, "standalone_capacities": (40, 40)},
        {"schedule": {"placement": "async"}, "cells": {"count": 2, "standalone": [40, 40]}},
    ),
    "colocate": (
        {"placement": Colocate(streaming=False)},
        {"schedule": {"placement": "colocate", "streaming": False}},
    ),
    "smaller bursts": (
        {"steps_per_burst": 1, "dispatch": Boundary(extra_dispatch=1.5)},
        {"schedule": {"steps_per_burst": 1, "extra_dispatch": 1.5}},
    ),
}


def journaled(path, one, *, keep=None):
    """The run's log, after it was written, with its first events only if told so."""
    log = EventLog()
    run(one, log=log)
    facts = [(now, event) for now, event, _ in log.entries][:keep]
    write(path, header_of(one, started_at=0.0), facts, kinds=EVENTS)
    return log


def found_in(path, one, **how):
    journaled(path, one, **how)
    return recorded(read(path, kinds=EVENTS))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return found_in(tmp_path_factory.mktemp("run") / "journal", SMALL)


def test_a_journal_replays_to_the_same_orders(tmp_path):
    one = replace(
        SMALL,
        shape=replace(SMALL.shape, surplus=2),
        faults=FaultRates(mean_life_h=20.0, failed_transitions=0.1),
        estimates=Estimates(sigma=0.2),
    )
    log = journaled(tmp_path / "journal", one)
    found = read(tmp_path / "journal", kinds=EVENTS)
    again = replay(shape_of(found.header.shape), found.facts(EVENTS))

    assert tuple(orders for _, _, orders in log.entries) == again.orders
    assert again.scheduler.stopped is not None


def test_a_journal_cut_anywhere_replays_as_far_as_it_goes(tmp_path):
    """FAULTS 29 and 32: at every byte."""
    path = tmp_path / "journal"
    one = scenario(steps=2, dispatch=Boundary(extra_dispatch=1))
    log = journaled(path, one)
    data = path.read_bytes()
    lengths = set()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = read(path, kinds=EVENTS)
        assert size == found.sound_bytes + found.torn_bytes
        if found.header is None:
            continue
        many = len(found.entries)
        lengths.add(many)
        again = replay(shape_of(found.header.shape), found.facts(EVENTS))
        assert tuple(orders for _, _, orders in log.entries[:many]) == again.orders

    assert set(range(len(log.entries))) == lengths


def test_every_execution_has_the_time_it_took(tmp_path):
    hours = ((1.0, 2.0), (0.5, 3.0))
    found = found_in(tmp_path / "journal", scenario(hours, steps=4, cell_capacity=1))

    assert [list(hours[at % 2]) for at in range(4)] == [
        pytest.approx(group) for group in found.tables["work"]["recorded_h"]
    ]
    assert (8, 0, 0) == (found.num_ended, found.num_open, found.num_queued)


def test_costs_are_as_seen(small):
    costs = small.tables["costs"]

    assert (90.0, 40.0, 60.0) == pytest.approx(
        (costs["into_training_s"], costs["out_of_training_s"], costs["publication_s"])
    )
    assert 25.0 == pytest.approx(costs["pull_s"])
    assert 4.0 == pytest.approx(costs["groups_per_node_hour"], rel=0.03)
    # A small part of a claim, which takes 3600 / (4 * 2 * 8) s, is taken for the update's.
    assert 30.0 == pytest.approx(costs["update_s"], abs=56.25 / 8)


@pytest.mark.parametrize(
    ("hours", "is_timed"),
    [(((1.0, 1.0),), True), (((1.0, 1.0), (1.0, 1.0), (10.0, 10.0), (10.0, 10.0)), False)],
    ids=["all at once", "two by two"],
)
def test_training_is_timed_only_where_cells_are_never_idle(tmp_path, hours, is_timed):
    """Of two groups at once the second is pulled when half of the first is done, which says
    nothing of how long a whole one takes; the end of the step does."""
    one = scenario(
        hours, groups_per_batch=4, placement=Async(), standalone_capacities=(100,), steps=1
    )
    found = found_in(tmp_path / "journal", one)

    assert 1.0 == pytest.approx(found.tables["costs"]["groups_per_node_hour"])
    assert 0.0 == pytest.approx(found.tables["costs"]["update_s"], abs=1e-6)
    assert is_timed != any("no ready group ever waited" in note for note in found.notes)


def test_evaluations_are_like_those_that_were_seen(small):
    assert 0.1 == pytest.approx(small.tables["evaluations"]["mean_h"], rel=0.05)
    assert 0.5 == pytest.approx(small.tables["evaluations"]["sigma"], rel=0.1)
    assert 2.5 == pytest.approx(small.tables["deadlines"]["harness_h"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_run_again_takes_about_as_long(small, seed):
    """Another seed draws other evaluations."""
    again = run(replace(small.scenario, seed=seed))

    assert run(SMALL).hours == pytest.approx(again.hours, rel=AGAIN)


def test_wrong_durations_would_be_noticed(small):
    doubled = [[2 * one for one in group] for group in small.tables["work"]["recorded_h"]]
    wrong = scenario_of(
        small.tables
        | {"work": {"recorded_h": doubled}, "deadlines": {"harness_h": 9, "overall_h": 9}}
    )

    assert run(SMALL).hours != pytest.approx(run(wrong).hours, rel=AGAIN)


@pytest.mark.parametrize(("direct", "overrides"), PLACES.values(), ids=PLACES.keys())
def test_another_placement_takes_about_what_it_takes_when_simulated_directly(
    small, direct, overrides
):
    expected = run(replace(SMALL, shape=replace(SMALL.shape, **direct))).hours
    changed = small.tables | {key: small.tables[key] | one for key, one in overrides.items()}

    assert expected == pytest.approx(run(scenario_of(changed)).hours, rel=AGAIN)
    # Or the hours of the recorded placement would do as an answer.
    assert run(SMALL).hours < expected * (1 - 2 * AGAIN)


def test_a_run_that_was_cut_is_completed_and_says_so(tmp_path):
    one = replace(SMALL, shape=replace(SMALL.shape, cell_capacity=24))
    whole = found_in(tmp_path / "whole", one)
    log = journaled(tmp_path / "again", one)
    keep = next(
        at
        for at, (_, event, _) in enumerate(log.entries)
        if isinstance(event, Published) and event.version == 6
    )
    # A few of the groups that the publication admits have launched by then.
    keep += 60
    cut = found_in(tmp_path / "journal", one, keep=keep)
    mine, theirs = (one.tables["work"]["recorded_h"] for one in (cut, whole))
    closed = {
        (event.group, event.member)
        for _, event, _ in log.entries[:keep]
        if isinstance(event, ExecutionClosed)
    }

    assert 0 < cut.num_open
    assert 0 < cut.num_queued
    assert sum(map(len, mine)) == cut.num_ended + cut.num_open + cut.num_queued
    assert all(mine[group][member] == theirs[group][member] for group, member in closed)
    assert any(f"{cut.num_open} executions were cut short" in note for note in cut.notes)
    assert any(f"{cut.num_queued} executions never launched" in note for note in cut.notes)
    assert 6 == cut.tables["schedule"]["steps"]
    assert cut.tables["schedule"]["steps"] == len(run(cut.scenario).steps)


def test_an_open_execution_is_given_the_time_of_one_that_ran_longer(tmp_path):
    """At the end one has run for 4.5 h, longer than any that ended, and another for 0.5 h."""
    hours = ((1.0, 3.0), (1.0, 5.0), (0.5, 2.0))
    extra = Boundary(extra_dispatch=1)
    one = scenario(hours, steps=3, dispatch=extra, num_cells=2, cell_capacity=4)
    log = journaled(tmp_path / "whole", one)
    keep = sum(now <= 4.5 * 3600 for now, _, _ in log.entries)
    found = found_in(tmp_path / "journal", one, keep=keep)

    *_, (_, longest), (_, other) = found.tables["work"]["recorded_h"]
    assert (4, 2, 4.5) == (found.num_ended, found.num_open, longest)
    assert other in (1.0, 3.0)
    assert 4.5 == found.tables["deadlines"]["harness_h"]


def test_voids_faults_and_exclusions_are_carried_over(tmp_path):
    one = replace(
        SMALL,
        shape=replace(SMALL.shape, steps=24),
        workload=replace(
            SMALL.workload,
            failures=Failures(void=0.1),
            evaluations=replace(SMALL.workload.evaluations, stuck_queries=0.2, stuck_within=0.25),
        ),
        faults=FaultRates(mean_life_h=15.0, restart_s=700.0, failed_transitions=0.1),
    )
    found = found_in(tmp_path / "journal", one)

    assert 0.1 == pytest.approx(found.tables["failures"]["void"], abs=0.06)
    stuck = found.tables["evaluations"]
    assert 0.05 == pytest.approx(stuck["stuck_queries"] * stuck["stuck_within"], abs=0.02)
    assert 0.1 == pytest.approx(found.tables["faults"]["failed_transitions"], abs=0.06)
    assert 700.0 == pytest.approx(found.tables["faults"]["restart_s"])
    assert 15.0 == pytest.approx(found.tables["faults"]["mean_life_h"], rel=0.8)
    assert found.scenario.faults.restart_s == pytest.approx(700.0)


def test_cancelled_executions_are_completed(tmp_path):
    one = replace(SMALL, shape=replace(SMALL.shape, surplus=2))
    log = journaled(tmp_path / "again", one)
    found = found_in(tmp_path / "journal", one)
    cancelled = sum(
        isinstance(event, ExecutionTerminated) and event.ending is Ending.CANCELLED
        for _, event, _ in log.entries
    )

    assert 0 < cancelled <= found.num_open
    assert isinstance(found.scenario.workload.durations, ReplayedDurations)


def test_a_run_without_switches_says_what_it_cannot_know(tmp_path):
    one = replace(SMALL, shape=replace(SMALL.shape, **PLACES["async"][0]))
    found = found_in(tmp_path / "journal", one)

    assert 0.0 == found.tables["costs"]["into_training_s"]
    assert any("no cell changed its role" in note for note in found.notes)


@pytest.mark.parametrize(
    ("keep", "says"), [(0, "ends within its first burst"), (20, "ends within its first burst")]
)
def test_a_journal_that_is_too_short_is_refused(tmp_path, keep, says):
    with pytest.raises(ConfigError, match=says):
        found_in(tmp_path / "journal", SMALL, keep=keep)


def test_a_journal_without_a_header_is_refused(tmp_path):
    (tmp_path / "journal").write_bytes(MAGIC)

    with pytest.raises(ConfigError, match="ends before its header"):
        recorded(read(tmp_path / "journal", kinds=EVENTS))


@pytest.mark.parametrize("nodes", ["two", 0, -1, True, float("inf"), None])
def test_a_note_that_is_no_number_of_nodes_is_refused(tmp_path, nodes):
    header = replace(header_of(SMALL, started_at=0.0), notes={"nodes_per_cell": nodes})
    log = EventLog()
    run(SMALL, log=log)
    facts = [(now, event) for now, event, _ in log.entries]
    write(tmp_path / "journal", header, facts, kinds=EVENTS)

    with pytest.raises(ConfigError, match="nodes_per_cell: a number above 0"):
        recorded(read(tmp_path / "journal", kinds=EVENTS))


def test_events_that_make_no_run_are_refused(tmp_path):
    log = EventLog()
    run(SMALL, log=log)
    facts = [(now, event) for now, event, _ in log.entries[5:]]
    write(tmp_path / "journal", header_of(SMALL, started_at=0.0), facts, kinds=EVENTS)

    with pytest.raises(ConfigError, match="its events make no run"):
        recorded(read(tmp_path / "journal", kinds=EVENTS))
