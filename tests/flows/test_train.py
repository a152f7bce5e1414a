"""gyre train with real processes and emulated durations: roles change, and nothing is lost."""

import json
import os
import re
import signal
from collections import Counter

import pytest
from tests.flows.live.followed_run import watched
from tests.flows.live.running import emulated, held, pid_of, tasks_of

from gyre.rollout import facts
from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EnterTraining,
    ExecutionClosed,
    OpenBatch,
    StepTaken,
    StopReason,
)
from gyre.scheduler.replay import replay
from gyre.storage import call_log
from gyre.types.call_records import CallFailed
from gyre.types.outcomes import Launched, Outcome
from gyre.types.run_events import (
    ClaimTrained,
    EvaluationRound,
    GroupPacked,
    RewardGiven,
    StepMade,
    TransitionTimed,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def elastic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic")
    return emulated(folder, tasks=tasks_of(folder, seed=1, mean_s=0.8))


def test_it_takes_all_its_steps(elastic):
    assert StopReason.FINISHED == elastic.reason
    assert [0, 1, 2, 3] == [one.step for one in elastic.facts(StepTaken)]


def test_the_journal_through_a_fresh_scheduler_gives_the_same_orders(elastic):
    again = replay(elastic.shape, elastic.events)

    assert [orders for _, _, orders in elastic.decided] == list(again.orders)
    assert [(now, event) for now, event, _ in elastic.decided] == elastic.events


def test_counters_capacity_and_prefix_hold_after_every_event(elastic):
    """The books of tests/scheduler watch every promise of SPEC 1 and 2."""
    assert StopReason.FINISHED is watched(elastic.shape, elastic.events).stopped


def test_ages_obey_the_identity_after_every_update(elastic):
    """SPEC 1.4, in integers."""
    seen = 0
    scheduler = replay(elastic.shape, []).scheduler
    for now, event in elastic.events:
        scheduler.handle(event, now)
        if isinstance(event, StepTaken):
            seen += 1
            found = scheduler.staleness.identity(event.step + 1)
            assert found.consumed + found.outstanding == found.survivors + found.lag

    assert 4 == seen


def test_no_call_fails_and_no_harness_starts_twice(elastic):
    logs = list(call_log.logs(elastic.folder))
    failed = [
        one for path in logs for one in call_log.read(path).records if type(one) is CallFailed
    ]
    launched = Counter(
        type(entry.fact)
        for folder in (elastic.folder / "attempts").iterdir()
        for entry in facts.read(folder)
    )

    assert 48 == len(logs) == launched[Launched]
    assert [] == failed
    assert 48 == len([one for one in elastic.facts(RewardGiven) if one.score is not None])


def test_cells_enter_and_leave_training_and_calls_move_with_their_cache(elastic):
    entered = [
        one for _, _, orders in elastic.decided for one in orders if type(one) is EnterTraining
    ]
    moved = [one.moved for one in elastic.facts(TransitionTimed) if one.moved]

    assert {0, 1, 2} <= {one.cell for one in entered}
    assert {0, 1, 2, 3} >= {one.cell for one in elastic.facts(CellServing)} >= {0, 1}
    assert 0 < sum(one["hand_overs"] for one in moved)
    # Some may be lost: an engine that a call has not reached yet has nothing of it to pin.
    assert 0 < sum(one["carried_bytes"] for one in moved)


def test_satellites_join_open_batches_and_do_part_of_the_work(elastic):
    """SPEC 3.1: every claim is in one sum, whoever did it."""
    opened = None
    joined = set()
    for _, event, orders in elastic.decided:
        if any(type(one) is OpenBatch for one in orders):
            opened = True
        if isinstance(event, StepTaken):
            opened = False
        if opened and isinstance(event, CellTraining) and event.cell != 0:
            joined.add(event.cell)
    by_cell = Counter(one.cell for one in elastic.facts(ClaimTrained))
    print("claims by cell:", json.dumps(by_cell))

    assert 2 <= len(joined & set(by_cell))
    packed = Counter()
    for one in elastic.facts(GroupPacked):
        packed[one.step] += one.num_claims
    trained = Counter(one.step for one in elastic.facts(ClaimTrained))
    assert (
        packed
        == trained
        == Counter({m.step: sum(m.claims.values()) for m in elastic.facts(StepMade)})
    )


@pytest.mark.parametrize(
    ("name", "schedule", "cells"),
    [
        ("async", {"placement": "async"}, {"count": 2, "standalone": [5, 5]}),
        ("colocate", {"placement": "colocate"}, {"count": 2, "capacity": 8}),
        ("whole bursts", {"streaming": False}, {"count": 2, "capacity": 8}),
    ],
)
def test_other_placements_run_by_configuration_alone(tmp_path, name, schedule, cells):
    """SPEC 9, 2.6."""
    tasks = tasks_of(tmp_path, seed=2, mean_s=0.2)
    small = {"steps": 2, "groups_per_batch": 2, "executions_per_group": 2, "extra_dispatch": 0.5}
    ran = emulated(tmp_path, tasks=tasks, schedule=small | schedule, cells=cells)

    assert_undisturbed(ran)


def member_of(execution):
    """Group and number of g00003-04, or g00003.1-04 if launched again; None if held out."""
    found = re.fullmatch(r"g(\d+)(?:\.\d+)?-(\d+)", execution)
    return found and (int(found[1]), int(found[2]))


def assert_undisturbed(ran):
    """It came to its end, by the book, and no call has failed but of what was cancelled."""
    surplus = {
        (one.group, one.member)
        for one in ran.facts(ExecutionClosed)
        if one.outcome is Outcome.SURPLUS
    }
    assert StopReason.FINISHED == ran.reason
    assert [orders for _, _, orders in ran.decided] == list(replay(ran.shape, ran.events).orders)
    assert StopReason.FINISHED is watched(ran.shape, ran.events).stopped
    assert 0 == sum(
        type(one) is CallFailed
        for path in call_log.logs(ran.folder)
        if member_of(path.stem) not in surplus
        for one in call_log.read(path).records
    )


def test_one_cell_cancels_surplus_executions_and_scores_held_out_tasks(tmp_path):
    """SPEC 2.6, 6.5, 6.6: it trains and serves in turns, without anybody beside it."""
    tasks = tasks_of(tmp_path, seed=3, mean_s=0.3, members=5)
    (tmp_path / "held-out").mkdir()
    held_out = tasks_of(tmp_path / "held-out", seed=4, mean_s=0.2, tasks=3)
    scored = tmp_path / "scored"

    def heard(now, fact):
        if isinstance(fact, EvaluationRound) and fact.version == 1:
            scored.touch()

    ran = emulated(
        tmp_path,
        tasks=tasks,
        heard=heard,
        # The run stops at its last publication, whatever is being scored then.
        harness=held(scored, "g00003"),
        schedule={
            "steps": 2,
            "steps_per_burst": 1,
            "groups_per_batch": 2,
            "extra_dispatch": 0.0,
            "surplus": 1,
        },
        cells={"count": 1, "capacity": 17},
        evaluation={"slots": 2, "tasks": {"kind": "jsonl", "path": str(held_out)}},
    )
    closings = {}
    for now, one in ran.timed(ExecutionClosed):
        closings.setdefault(one.group, []).append((now, one.outcome))
    rounds = ran.facts(EvaluationRound)

    assert [0, 1, 2, 3] == sorted(closings)
    for *counted, (now, outcome) in closings.values():
        assert [Outcome.VALID] * 4 == [one for _, one in counted]
        # It may have earned its own in the moment in which the last of the four came.
        assert outcome is Outcome.SURPLUS or (now, outcome) == counted[-1], closings
    assert [(0, 3, 3), (1, 3, 3)] == [(one.version, one.num_tasks, one.num_valid) for one in rounds]
    assert_undisturbed(ran)
    assert all(group.num_trajectories <= 4 for group in ran.facts(GroupPacked))


def test_a_satellite_that_is_killed_loses_nothing_but_its_time(tmp_path):
    """SPEC 3.2: its claims return, another process takes its place, and no call fails."""
    killed = []

    def heard(now, fact):
        if isinstance(fact, ClaimTrained) and fact.cell == 1 and not killed:
            killed.append(fact)
            os.kill(pid_of(tmp_path, "cell-1"), signal.SIGKILL)

    tasks = tasks_of(tmp_path, seed=1, mean_s=0.6)
    ran = emulated(tmp_path, tasks=tasks, heard=heard, cells={"count": 3, "capacity": 6})
    made = ran.facts(StepMade)

    assert StopReason.FINISHED == ran.reason
    assert {1} == {one.cell for one in ran.facts(CellDied)}
    assert [1] == [one.cell for one in ran.facts(CellRecovered)]
    assert 12 == len({one.group for one in ran.facts(GroupPacked)})
    packed, trained = Counter(), Counter()
    for one in ran.facts(GroupPacked):
        packed[one.step] += one.num_claims
    for one in ran.facts(ClaimTrained):
        trained[one.step] += 1
    assert packed == Counter({one.step: sum(one.claims.values()) for one in made})
    assert 1 <= trained[killed[0].step] - packed[killed[0].step], "what was lost was done again"
    assert StopReason.FINISHED is watched(ran.shape, ran.events).stopped
    assert 0 == sum(
        type(one) is CallFailed
        for path in call_log.logs(ran.folder)
        for one in call_log.read(path).records
    )
