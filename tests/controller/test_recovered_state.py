"""A run recalled from its journal: whatever was owed is known again, and the run goes on."""

import random

import pytest
from tests.scheduler.support.scene import shape
from tests.scheduler.support.world import World

from gyre.controller import recovered_state
from gyre.controller.recovered_state import RecoveredState, recover
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import (
    EvaluationRequested,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    LaunchEvaluation,
    RunStarted,
    StopReason,
)
from gyre.scheduler.policies import Async, Colocate, Elastic
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import (
    NEEDED_BY_RESUME,
    RUN_EVENTS,
    CallsDamaged,
    ExecutionRelaunched,
    GroupDrawn,
    RewardGiven,
    RunEnded,
    StepMade,
    WeightsPublished,
)

PLACEMENTS = [Elastic(), Elastic(streaming=False), Async(), Colocate()]
FAULTS = ("kill", "lose", "fail", "exclude", "evaluate")


def disturbed(seed, **changes):
    """A world after each of its events, in which one of eight is a fault."""
    chance = random.Random(seed)
    given = {
        "steps": 6,
        "steps_per_burst": 2,
        "standalone_capacities": (3,),
        "evaluation_slots": 1,
        "surplus": 1,
        **changes,
    }
    world = World(shape(**given))
    yield world
    while world.stopped is None:
        if chance.random() < 1 / 8:
            disturb(world, chance)
        else:
            world.go_on(chance.choice)
        yield world


def disturb(world, chance):
    match chance.choice(FAULTS):
        case "kill":
            world.kill(chance.randrange(1, 3))
        case "lose":
            world.lose(chance.randrange(4))
        case "fail" if any(cell != 0 for cell in world.transitions):
            cells = sorted(world.transitions)
            at = next(place for place, cell in enumerate(cells) if cell != 0)
            world.finish_transition(at, works=False)
        case "exclude" if world.closing:
            world.close(chance.randrange(9), Outcome.EXCLUDED)
        case "evaluate":
            world.request_evaluation()
        case _:
            pass


def events_of(world):
    return [(now, event) for event, now, _ in world.log]


def owed(found):
    """What nobody has answered, as the world counts it."""
    members = [
        ((number, place), member)
        for number, group in found.groups.items()
        for place, member in enumerate(group.members)
    ]
    pulled = {one for batch in found.steps.values() for one in batch.groups}
    pulled |= set() if found.open is None else set(found.open[1].groups)
    return {
        "admissions": {one.admitted.group for one in found.outstanding if not one.is_answered},
        "running": {
            place for place, one in members if one.engine is not None and not one.is_terminated
        },
        "closing": {place for place, one in members if one.is_terminated and one.outcome is None},
        "offered": {number for number, one in found.groups.items() if one.offered} - pulled,
        "step": None if found.open is None else found.open[0],
        "version": found.version,
        "published": found.published,
    }


def owed_by(world):
    return {
        "admissions": set(world.admissions),
        "running": set(world.running),
        "closing": set(world.closing),
        "offered": set(world.offered),
        "step": world.books.open_step,
        "version": world.books.version,
        "published": world.books.published,
    }


@pytest.mark.parametrize("placement", PLACEMENTS, ids=repr)
def test_after_every_event_what_is_owed_is_known_from_the_events_alone(placement):
    for seed in range(4):
        found, heard = None, 0
        for world in disturbed(seed, placement=placement):
            found = RecoveredState(world.shape) if found is None else found
            for event, now, _ in world.log[heard:]:
                found.record(event, now)
            heard = len(world.log)
            if world.stopped is None:
                assert owed_by(world) == owed(found)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=repr)
def test_cut_anywhere_and_recalled_the_run_goes_on_to_its_end(placement):
    """FAULTS 29: every cell is gone, and the world watches all its promises to the end."""
    chance = random.Random(7)
    for seed in range(8):
        length = sum(1 for _ in disturbed(seed, placement=placement))
        cut = chance.randrange(1, length)
        worlds = disturbed(seed, placement=placement)
        world = next(one for number, one in enumerate(worlds, start=1) if number == cut)
        if world.stopped is not None:
            continue
        found = recover(world.shape, events_of(world))
        world.scheduler = found.scheduler
        cells = found.scheduler.cells
        for cell in range(len(cells)):
            if cells.state(cell) is not CellState.DEAD:
                world.kill(cell)
        world.lose(len(cells))
        world.finish()

        assert StopReason.FINISHED == world.stopped


def test_of_steps_that_a_checkpoint_covers_nothing_is_kept():
    world = list(disturbed(3))[-1]
    events = events_of(world)
    whole, covered = recover(world.shape, events), recover(world.shape, events, since=4)

    assert {0, 1, 2, 3, 4, 5} == set(whole.steps)
    assert {4, 5} == set(covered.steps)
    trained = {one for step in (4, 5) for one in whole.steps[step].groups}
    assert trained <= set(covered.groups)
    before = {one for step in range(4) for one in whole.steps[step].groups}
    assert not before & set(covered.groups)
    assert whole.drawing == covered.drawing


def started(**changes):
    found = RecoveredState(shape(**changes))
    found.record(RunStarted(), 0.0)
    return found


def admitted(found, *groups):
    for group in groups:
        found.record(GroupAdmitted(group=group), 0.0)
    return found


def test_a_journal_without_a_first_event_is_of_a_run_that_has_not_begun():
    found = recover(shape(), [(0.0, RunEnded(reason="told"))])

    assert not found.has_started


def test_a_query_that_was_drawn_and_not_admitted_is_known():
    found = started()
    found.record(GroupDrawn(group=0, position=0, task="t", executions=("a", "b")), 0.0)

    assert ("t", False) == (found.groups[0].task, found.groups[0].is_answered)


def test_scores_are_those_that_were_given_and_a_missing_one_stays_missing():
    found = admitted(started(), 0, 1)
    for member, score in ((0, 0.0), (1, None)):
        ended = ExecutionTerminated(group=0, member=member, ending=Ending.COMPLETED)
        found.record(ended, 1.0)
        name = f"g00000-{member:02d}"
        reward = RewardGiven(group=0, member=member, execution=name, score=score, ran_s=1.0)
        found.record(reward, 1.0)
    found.record(ExecutionClosed(group=0, member=0, outcome=Outcome.VALID), 1.0)
    zero, missing = found.groups[0].members

    assert (0.0, Outcome.VALID) == (zero.score, zero.outcome)
    assert (None, None, True) == (missing.score, missing.outcome, missing.is_rewarded)


def test_a_new_name_stays_with_its_member():
    found = admitted(started(), 0, 1)
    new = ExecutionRelaunched(group=0, member=1, execution="g00000.1-01", reason="lost")
    found.record(new, 1.0)

    assert [None, "g00000.1-01"] == [one.name for one in found.groups[0].members]


def test_facts_and_orders_of_evaluation_come_in_their_order():
    found = admitted(started(evaluation_slots=1), 0, 1)
    found.record(EvaluationRequested(evaluation=0), 1.0)

    kinds = [type(one) for one in found.evaluating]
    assert [RunStarted, EvaluationRequested, LaunchEvaluation] == kinds


def test_the_digest_is_that_of_what_is_published_and_not_of_what_was_about_to_be():
    """A commit may be on the disk in part: the facts for people come first."""
    worlds = disturbed(3)
    world = next(one for one in worlds if one.books.published == 2)
    found = recover(world.shape, events_of(world))
    for version, digest in ((2, "a"), (4, "b")):
        told = WeightsPublished(version=version, digest=digest, save_s=0, load_s=0, num_bytes=1)
        found.record(told, world.now)

    assert (2, "a") == (found.published, found.digest)


def test_a_step_that_was_made_and_not_taken_is_still_open():
    world = next(one for one in disturbed(3) if one.may_step)
    found = recover(world.shape, events_of(world))
    step = world.books.open_step
    found.record(
        StepMade(
            step=step,
            loss=0.0,
            reward=None,
            gradient_norm=2.0,
            is_clipped=False,
            claims={},
            reduce_s=0.0,
            step_s=0.0,
            reduced_bytes=0,
        ),
        world.now,
    )

    assert (step, step) == (found.version, found.open[0])
    assert {} == {one: batch for one, batch in found.steps.items() if one >= step}


def test_executions_whose_calls_were_damaged_are_known_again():
    """A step that is taken again has them as little as it had then."""
    found = RecoveredState(shape(steps=2))
    found.record(RunStarted(), 0.0)
    found.record(CallsDamaged(group=0, execution="g00000-01", reason="a checksum differs"), 1.0)

    assert {"g00000-01"} == found.damaged


def test_resume_reads_the_run_events_that_it_needs_and_no_others():
    """What its module does not import it cannot tell from any other fact."""
    named = {one for one in vars(recovered_state).values() if isinstance(one, type)}

    assert set(NEEDED_BY_RESUME) == named & set(RUN_EVENTS)
