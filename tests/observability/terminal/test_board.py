"""The board against the scheduler and the simulator that made the events it was told."""

from dataclasses import replace
from fractions import Fraction

import pytest
from tests.observability.terminal.journals import (
    SMALL,
    made,
    packed,
    reward_of,
    simulated,
    timed,
    told,
    trained,
)
from tests.simulator.scenes import scenario

from gyre.journal.reader import Resumed
from gyre.observability.staleness import in_a_whole_run
from gyre.observability.terminal.board import MOST_LEVELS, RunBoard
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
    """The record of a run, and a board that was told of it."""
    record, events = simulated(one)
    board = RunBoard(one.shape)
    board.record_all(facts(events) if facts else events)
    return record, board


@pytest.mark.parametrize("name", SCENES)
def test_every_number_is_the_scheduler_s_after_every_event(name):
    _, events = simulated(SCENES[name])
    board, scheduler = RunBoard(SCENES[name].shape), Scheduler(SCENES[name].shape)
    for now, event in events:
        board.record(now, event)
        scheduler.handle(event, now)

        assert scheduler.waterlevel == board.waterlevel
        assert scheduler.engines.capacity == board.capacity <= board.full_capacity
        assert scheduler.counters.queued == board.queued
        assert scheduler.counters.running == board.running
        assert scheduler.burst.ready == board.num_ready
        assert tuple(scheduler.cells.state(cell) for cell in scheduler.cells) == board.states


@pytest.mark.parametrize("name", SCENES)
def test_cells_have_the_roles_that_the_simulator_recorded(name):
    record, board = seen(SCENES[name])

    for cell, intervals in enumerate(record.roles):
        assert [(one.start_s, one.end_s, one.role) for one in intervals] == [
            (span.start_s, span.end_s, ROLES[span.state]) for span in board.spans(cell)
        ]


@pytest.mark.parametrize("name", SCENES)
def test_steps_and_staleness_are_the_simulator_s(name):
    record, board = seen(SCENES[name])

    assert [(one.number, one.at_s, one.took_s) for one in record.steps] == [
        (one.number, one.at_s, one.took_s) for one in board.steps
    ]
    assert [one.identity.survivors for one in record.steps] == [
        one.identity.survivors for one in board.steps
    ]
    assert all(one.identity.holds for one in board.steps)
    assert record.staleness.mean == pytest.approx(board.staleness)
    assert record.staleness.predicted == pytest.approx(board.predicted_staleness)
    assert record.staleness.mean == pytest.approx(
        sum(one.staleness for one in board.steps) / len(board.steps)
    )


def test_switches_are_counted_as_the_simulator_counts_them():
    record, board = seen(ROUGH)
    counts, tally = record.counts, board.tally

    assert counts.cells_entered == tally.entered
    assert counts.cells_turned_back == tally.turned_back > 0
    assert counts.transitions_failed == tally.failed > 0
    assert counts.rescues == tally.rescues
    assert counts.executions_moved == tally.executions_moved > 0
    assert counts.executions_terminated == board.scheduler.counters.terminated
    assert counts.executions_excluded == board.outcomes[Outcome.EXCLUDED]


@pytest.mark.parametrize(
    ("extra", "mu", "steps"),
    [(0.5, 3, 12), (0.5, 1, 6), (0, 1, 5), (0, 4, 8), (2, 2, 4), (1.5, 2, 2)],
)
def test_a_whole_run_has_exactly_the_staleness_that_counting_gives(extra, mu, steps):
    shape = replace(
        SMALL.shape, dispatch=Boundary(extra_dispatch=extra), steps_per_burst=mu, steps=steps
    )
    _, board = seen(replace(SMALL, shape=shape))
    ages = board.scheduler.staleness

    assert in_a_whole_run(shape) == Fraction(ages.consumed, ages.histogram.total())


def test_chance_has_a_part_in_the_staleness_of_other_runs():
    assert None is in_a_whole_run(STANDING.shape)
    assert None is in_a_whole_run(replace(SMALL.shape, endless_dispatch=True))
    assert None is in_a_whole_run(replace(SMALL.shape, steps=None))


def test_facts_for_people_are_added_up_by_step():
    _, board = seen(SMALL, facts=told)

    assert [reward_of(step) for step in range(12)] == board.rewards
    assert {0, 1} == set(board.tally.claims)
    assert 12 * 8 * 2 == board.tally.claims.total()
    assert 12 * 8 * 2 * 3.0 == sum(board.tally.claim_s.values())
    assert (57_600, 96_000) == (board.tally.tokens, board.tally.row_tokens)
    assert [3, 6, 9, 12] == list(board.publications)
    assert 25 == len(board.transitions)
    assert ("finished", True) == (board.ended, board.is_over)


def test_what_is_said_again_after_a_resume_counts_once():
    _, events = simulated(scenario(steps=2))
    once, again = RunBoard(scenario(steps=2).shape), RunBoard(scenario(steps=2).shape)
    for now, event in events:
        for board, many in ((once, 1), (again, 2)):
            for _ in range(many):
                if isinstance(event, StepTaken) and event.step == board.version:
                    board.record(now, packed(0, event.step))
                    board.record(now, trained(event.step, 0, 0))
                    board.record(now, made(event.step, {0: 1}))
                board.record(now, timed(0, 7, into_training=True))
                board.record(now, event)
            board.record(now, Resumed(at=1.0))

    assert once.tally == again.tally
    assert once.steps == again.steps
    assert list(once.transitions) == list(again.transitions)


def test_the_report_of_an_update_that_was_never_taken_belongs_to_no_step():
    _, events = simulated(scenario(steps=2))
    board = RunBoard(scenario(steps=2).shape)
    board.record(0.0, made(5, {0: 100}))
    board.record_all(events)

    assert [None, None] == [one.made for one in board.steps]
    assert 0 == board.tally.claims.total()


def test_the_time_left_is_that_of_the_steps_left():
    record, events = simulated(scenario(steps=4))
    board = RunBoard(scenario(steps=4).shape)
    found = []
    for now, event in events:
        board.record(now, event)
        if isinstance(event, StepTaken):
            found.append(board.left_s(now))
    step_s = record.steps[-1].at_s / 4

    assert [3 * step_s, 2 * step_s, step_s, 0.0] == pytest.approx(found)
    assert 0.0 == board.left_s(record.end_s + 1e6)


def test_nobody_knows_the_time_left_before_the_first_step_or_of_a_run_without_an_end():
    _, events = simulated(SMALL)
    first = next(at for at, (_, event) in enumerate(events) if isinstance(event, StepTaken))
    board, endless = RunBoard(SMALL.shape), RunBoard(replace(SMALL.shape, steps=None))
    board.record_all(events[:first])
    endless.record_all(events[: first + 1])

    assert (0, None) == (board.version, board.left_s(board.now))
    assert (1, None) == (endless.version, endless.left_s(endless.now))


def test_a_step_that_takes_longer_than_others_is_about_to_end():
    _, events = simulated(scenario(steps=4))
    board = RunBoard(scenario(steps=4).shape)
    for now, event in events:
        board.record(now, event)
        if isinstance(event, StepTaken):
            break

    assert 2 * board.step_s == board.left_s(now + 100 * board.step_s)


def test_rewards_are_seen_before_a_step_uses_them():
    board = RunBoard(SMALL.shape)
    for now, fact in told(simulated(SMALL)[1]):
        before = len(board.scores_since)
        board.record(now, fact)
        if isinstance(fact, StepTaken):
            break

    assert before > 0
    assert () == board.scores_since


def test_levels_are_bounded_and_cover_the_run():
    many = RunBoard(SMALL.shape)
    many.record(0.0, RunStarted())
    for second in range(3 * MOST_LEVELS):
        many.record(float(second), RunStarted())

    assert len(many.levels) < MOST_LEVELS
    assert 0.0 == many.levels[0].at_s
    assert many.levels[-1].at_s > 2.9 * MOST_LEVELS


def test_a_fact_that_cannot_be_is_refused_and_changes_nothing():
    board = RunBoard(SMALL.shape)
    board.record(0.0, RunStarted())

    with pytest.raises(InternalError, match="not open"):
        board.record(9.0, StepTaken(step=0))
    assert (0.0, 0, []) == (board.now, board.version, board.steps)
    assert {CellState.SERVING} == set(board.states)


def test_a_board_that_is_told_the_same_shows_the_same():
    _, events = simulated(SMALL)
    board = RunBoard(SMALL.shape)
    board.record_all(events)

    assert replay(SMALL.shape, events).scheduler.staleness.histogram == (
        board.scheduler.staleness.histogram
    )
