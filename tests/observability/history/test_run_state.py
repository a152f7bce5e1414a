"""A run's state against the scheduler and the simulator that made the events it was told."""

from dataclasses import replace
from fractions import Fraction

import pytest
from tests.observability.support.journals import (
    SMALL,
    made,
    packed,
    reward_of,
    simulated,
    timed,
    told,
    trained,
)
from tests.simulator.support.scenes import scenario

from gyre.journal.journal import Resumed
from gyre.observability.history.state import RunState
from gyre.observability.staleness import in_a_whole_run, in_the_long_run
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import RunStarted, StepTaken
from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous
from gyre.scheduler.replay import replay
from gyre.scheduler.scheduler import Scheduler
from gyre.simulator.recorder import ROLES
from gyre.simulator.scenario import FaultRates
from gyre.types.errors import InternalError
from gyre.types.outcomes import Outcome

ROUGH = replace(
    SMALL,
    shape=replace(SMALL.shape, surplus=2),
    faults=FaultRates(mean_life_h=15.0, failed_transitions=0.2),
    costs=replace(SMALL.costs, into_training_s=1800.0),
)
SPLIT = replace(
    SMALL,
    shape=replace(
        SMALL.shape, placement=Async(), num_cells=2, standalone_capacities=(40, 40), steps=6
    ),
)
TOGETHER = replace(SMALL, shape=replace(SMALL.shape, placement=Colocate(streaming=False)))
STANDING = replace(
    SMALL,
    shape=replace(SMALL.shape, dispatch=Continuous(depth=14), steps=24),
)
SCENES = {"small": SMALL, "rough": ROUGH, "split": SPLIT, "together": TOGETHER, "deep": STANDING}


def seen(one, *, facts=None):
    """The record of a run, and the state that it was left in."""
    record, events = simulated(one)
    run = RunState(one.shape)
    run.record_all(facts(events) if facts else events)
    return record, run


@pytest.mark.parametrize("name", SCENES)
def test_every_number_is_the_scheduler_s_after_every_event(name):
    _, events = simulated(SCENES[name])
    run, scheduler = RunState(SCENES[name].shape), Scheduler(SCENES[name].shape)
    for now, event in events:
        run.record(now, event)
        scheduler.handle(event, now)

        assert scheduler.waterlevel == run.scheduler.waterlevel
        assert scheduler.engines.loads == run.scheduler.engines.loads
        assert scheduler.burst == run.scheduler.burst
        assert (scheduler.burst.version, scheduler.burst.published) == (run.version, run.published)
        assert tuple(scheduler.cells.state(cell) for cell in scheduler.cells) == run.fleet.states


@pytest.mark.parametrize("name", SCENES)
def test_cells_have_the_roles_that_the_simulator_recorded(name):
    record, run = seen(SCENES[name])

    for cell, intervals in enumerate(record.roles):
        assert [(one.start_s, one.end_s, one.role) for one in intervals] == [
            (span.start_s, span.end_s, ROLES[span.state])
            for span in run.fleet.spans(cell, 0.0, record.end_s)
        ]


@pytest.mark.parametrize("name", SCENES)
def test_steps_and_staleness_are_the_simulator_s(name):
    record, run = seen(SCENES[name])
    rows = run.steps.rows

    assert [(one.number, one.at_s, one.took_s, one.staleness) for one in record.steps] == [
        (one.number, one.at_s, one.took_s, one.ages) for one in rows
    ]
    assert [one.identity for one in record.steps] == [one.identity for one in rows]
    assert all(one.identity.holds for one in rows)
    assert record.staleness.mean == pytest.approx(run.scheduler.staleness.mean)
    assert record.staleness.predicted == pytest.approx(
        in_the_long_run(run.shape, run.scheduler.staleness)
    )
    assert record.staleness.mean == pytest.approx(sum(one.staleness for one in rows) / len(rows))


def test_a_step_counts_the_cells_that_were_in_training_when_it_was_taken():
    """Not those that remain: with the last step of a burst its satellites are sent home."""
    record, run = seen(TOGETHER)

    assert [4] * 12 == [one.num_cells for one in record.steps]
    assert [4] * 12 == [one.num_training for one in run.steps.rows]


def test_switches_are_counted_as_the_simulator_counts_them():
    record, run = seen(ROUGH)
    counts, found = record.counts, run.fleet.counts

    assert counts.cells_entered == found.entered
    assert counts.cells_turned_back == found.turned_back > 0
    assert counts.transitions_failed == found.failed > 0
    assert counts.rescues == found.rescues
    assert counts.executions_moved == found.executions_moved > 0
    assert counts.executions_terminated == run.scheduler.counters.terminated
    assert counts.executions_excluded == run.scheduler.ledger.outcomes[Outcome.EXCLUDED]


@pytest.mark.parametrize(
    ("extra", "mu", "steps"),
    [(0.5, 3, 12), (0.5, 1, 6), (0, 1, 5), (0, 4, 8), (2, 2, 4), (1.5, 2, 2)],
)
def test_a_whole_run_has_exactly_the_staleness_that_counting_gives(extra, mu, steps):
    shape = replace(
        SMALL.shape, dispatch=Boundary(extra_dispatch=extra), steps_per_burst=mu, steps=steps
    )
    _, run = seen(replace(SMALL, shape=shape))
    ages = run.scheduler.staleness

    assert in_a_whole_run(shape) == Fraction(ages.consumed, ages.histogram.total())


def test_chance_has_a_part_in_the_staleness_of_other_runs():
    assert None is in_a_whole_run(STANDING.shape)
    assert None is in_a_whole_run(replace(SMALL.shape, endless_dispatch=True))
    assert None is in_a_whole_run(replace(SMALL.shape, steps=None))


def test_facts_for_people_are_added_up_by_step():
    _, run = seen(SMALL, facts=told)
    rows = run.steps.rows

    assert [(step + 1, reward_of(step)) for step in range(12)] == run.steps.rewards
    assert {0, 1} == {cell for one in rows for cell in one.made.claims}
    assert 12 * 8 * 2 == sum(sum(one.made.claims.values()) for one in rows)
    assert 12 * 8 * 2 * 3.0 == sum(one.claim_s for one in rows)
    assert 57_600 == sum(one.packed.tokens for one in rows)
    assert 96_000 == sum(one.packed.row_tokens for one in rows)
    assert [3, 6, 9, 12] == [one.fact.version for one in run.steps.publications]
    assert (270_000_000, None) == (run.steps.weights_of(6).num_bytes, run.steps.weights_of(5))
    assert 25 == len(run.fleet.transitions)
    assert ("finished", "finished", True) == (run.ended, run.reason, run.is_over)


def test_what_is_said_again_after_a_resume_counts_once():
    _, events = simulated(scenario(steps=2))
    once, again = RunState(scenario(steps=2).shape), RunState(scenario(steps=2).shape)
    for now, event in events:
        for run, many in ((once, 1), (again, 2)):
            for _ in range(many):
                if isinstance(event, StepTaken) and event.step == run.version:
                    run.record(now, packed(0, event.step))
                    run.record(now, trained(event.step, 0, 0))
                    run.record(now, made(event.step, {0: 1}))
                run.record(now, timed(0, 7, into_training=True))
                run.record(now, event)
            run.record(now, Resumed(at=1.0))

    assert once.fleet.counts == again.fleet.counts
    assert once.endings == again.endings
    assert once.steps.rows == again.steps.rows
    assert len(once.fleet.transitions) == len(again.fleet.transitions) == 1


def test_the_report_of_an_update_that_was_never_taken_belongs_to_no_step():
    _, events = simulated(scenario(steps=2))
    run = RunState(scenario(steps=2).shape)
    run.record(0.0, made(5, {0: 100}))
    run.record_all(events)

    assert [None, None] == [one.made for one in run.steps.rows]


def test_the_time_left_is_that_of_the_steps_left():
    record, events = simulated(scenario(steps=4))
    run = RunState(scenario(steps=4).shape)
    found = []
    for now, event in events:
        run.record(now, event)
        if isinstance(event, StepTaken):
            found.append(run.steps.left_s(now))
    step_s = record.steps[-1].at_s / 4

    assert [3 * step_s, 2 * step_s, step_s, 0.0] == pytest.approx(found)
    assert 0.0 == run.steps.left_s(record.end_s + 1e6)


def test_nobody_knows_the_time_left_before_the_first_step_or_of_a_run_without_an_end():
    _, events = simulated(SMALL)
    first = next(at for at, (_, event) in enumerate(events) if isinstance(event, StepTaken))
    run, endless = RunState(SMALL.shape), RunState(replace(SMALL.shape, steps=None))
    run.record_all(events[:first])
    endless.record_all(events[: first + 1])

    assert (0, None) == (run.version, run.steps.left_s(run.now_s))
    assert (1, None) == (endless.version, endless.steps.left_s(endless.now_s))


def test_a_step_that_takes_longer_than_others_is_about_to_end():
    _, events = simulated(scenario(steps=4))
    run = RunState(scenario(steps=4).shape)
    for now, event in events:
        run.record(now, event)
        if isinstance(event, StepTaken):
            break

    assert 2 * now == run.steps.left_s(now + 100 * now)


def test_rewards_are_seen_before_a_step_uses_them():
    run = RunState(SMALL.shape)
    for now, fact in told(simulated(SMALL)[1]):
        before = len(run.steps.scores)
        run.record(now, fact)
        if isinstance(fact, StepTaken):
            break

    assert before > 0
    assert {} == run.steps.scores


def test_a_fact_that_cannot_be_is_refused_and_changes_nothing():
    run = RunState(SMALL.shape)
    run.record(0.0, RunStarted())

    with pytest.raises(InternalError, match="not open"):
        run.record(9.0, StepTaken(step=0))
    assert (0.0, 0, []) == (run.now_s, run.version, run.steps.rows)
    assert {CellState.SERVING} == set(run.fleet.states)


def test_a_state_that_is_told_the_same_is_the_same():
    _, events = simulated(SMALL)
    run = RunState(SMALL.shape)
    run.record_all(events)

    assert replay(SMALL.shape, events).scheduler.staleness.histogram == (
        run.scheduler.staleness.histogram
    )
