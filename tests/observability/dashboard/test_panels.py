"""Panels of a page: true rows, nothing from the future, and sums that come out."""

import json
from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, reward_of, simulated, told

from gyre.observability.dashboard.panels import PANELS, panels
from gyre.observability.dashboard.panels_cells import CAUSES, Account, Cause
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.dashboard.views import (
    ORDERS,
    ListingQuery,
    NewsCursor,
    listed,
    moment,
    plain_shape,
)
from gyre.observability.history.cells import CellStateChange
from gyre.observability.history.run import RunHistory
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import EnterTraining, RunStarted
from gyre.scheduler.scheduler import Scheduler
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import CheckpointFailed, CheckpointMade, ClaimTrained, RunEnded
from gyre.types.training import Measures


def story_of(facts, one=SMALL):
    history = RunHistory(one.shape)
    history.record_all(facts)
    return history


@pytest.fixture(scope="module")
def facts():
    found = list(told(simulated(SMALL)[1]))
    middle = len(found) // 2
    fault = (found[middle][0], CheckpointFailed(version=3, reason="the disk is full"))
    return [*found[:middle], fault, *found[middle:]]


@pytest.fixture(scope="module")
def history(facts):
    return story_of(facts)


def view(at_s, *, points=600):
    return ViewWindow(at_s=at_s, from_s=0.0, to_s=at_s, points=points)


def test_the_past_is_shown_as_it_was(facts, history):
    """As a story shows it that has heard nothing since; names, seats and what time went to may be
    known later."""
    names = [name for name in PANELS if name != "idle"]
    later = {"engine": None, "execution": None}
    for part in (0.0, 0.1, 0.35, 0.5, 0.77, 1.0):
        at_s = history.now_s * part
        then = story_of(fact for fact in facts if fact[0] <= at_s)
        wanted = ListingQuery(at_s=at_s, limit=1000, order="ended")
        rows = [[row | later for row in listed(one, wanted)["rows"]] for one in (then, history)]

        assert panels(then, view(at_s), names) == panels(history, view(at_s), names)
        assert moment(then, at_s) == moment(history, at_s)
        assert rows[0] == rows[1]


def test_everything_is_plain_json(history):
    found = panels(history, view(history.now_s), PANELS)
    whole = {"panels": found, "moment": moment(history, 0.0), "shape": plain_shape(history.shape)}

    assert whole == json.loads(json.dumps(whole, allow_nan=False))


def test_few_points_are_true_points_and_keep_the_peaks(history):
    whole = PANELS["water"](history, view(history.now_s, points=10**6))
    few = PANELS["water"](history, view(history.now_s, points=60))
    rows = set(zip(*whole.values(), strict=True))
    kept = list(zip(*few.values(), strict=True))

    assert len(kept) <= 66 < len(rows)
    assert set(kept) <= rows
    assert kept == sorted(kept)
    for name in ("waterlevel", "capacity"):
        assert (max(whole[name]), min(whole[name])) == (max(few[name]), min(few[name]))


def test_a_window_begins_with_what_held_before_it(history):
    from_s, to_s = history.now_s * 0.4, history.now_s * 0.45
    found = PANELS["water"](
        history, ViewWindow(at_s=history.now_s, from_s=from_s, to_s=to_s, points=10**6)
    )

    assert found["at_s"][0] <= from_s < found["at_s"][1]
    assert found["at_s"][-1] <= to_s
    assert history.level_at(from_s).waterlevel == found["waterlevel"][0]


def test_the_line_is_what_the_scheduler_admits_cells_by(history):
    """Whenever a cell was sent into training the water stood at the line or below it."""
    scheduler = Scheduler(SMALL.shape)
    entered = []
    for now, event in simulated(SMALL)[1]:
        before = scheduler.engines.capacity
        orders = scheduler.handle(event, now)
        sent = [one for one in orders if isinstance(one, EnterTraining)]
        entered += [[now, one.cell] for one in sent]
        assert all(scheduler.waterlevel <= before - SMALL.shape.cell_capacity for _ in sent)

    assert entered == PANELS["supply"](history, view(history.now_s))["entered"] != []


def test_of_stretches_too_short_to_be_seen_what_there_is_most_of_is_shown():
    """Two seconds of three are training, then two are serving; nine seconds can be seen."""
    serving, training = CellState.SERVING, CellState.TRAINING
    states = [serving, training, training] * 45 + [serving, serving, training] * 45
    history = RunHistory(SMALL.shape)
    history.fleet.changes[1] = [
        CellStateChange(float(at), state) for at, state in enumerate(states)
    ]
    history.now_s = 270.0
    found = PANELS["roles"](history, view(270.0, points=30))["cells"][1]

    assert [[0.0, 135.0, "training"], [135.0, 270.0, "serving"]] == found["spans"]
    assert 0.5 == found["training_share"]


def test_rewards_are_those_of_the_steps(history):
    found = PANELS["steps"](history, view(history.now_s))

    assert list(range(1, 13)) == found["step"]
    assert [reward_of(step) for step in range(12)] == found["reward"]
    assert [8 * 600] * 12 == found["tokens"]
    assert [16] * 12 == found["num_claims"]
    assert [None] * 12 == found["max_gap"]


def test_staleness_stands_beside_its_prediction(history):
    found = PANELS["staleness"](history, view(history.now_s))
    groups = sum(many for _, many in found["histogram"])

    assert groups == 12 * 8 == sum(many for _, many in found["in_order"])
    assert (
        found["whole_run"]
        == found["mean"]
        == pytest.approx(sum(age * many for age, many in found["in_order"]) / groups)
    )
    assert 0.5 + (3 - 1) / 2 == found["predicted"]
    assert found["identity"]["holds"]


def test_durations_count_every_execution_by_its_ending(history):
    found = PANELS["durations"](history, view(history.now_s))["executions"]
    endings = history.work.endings_at(history.now_s)

    assert {name: sum(bins) for name, bins in found["counts"].items()} == {
        name: many for name, many in endings.items() if many
    }
    assert found["counts"]["timed-out"][-1] == endings["timed-out"] > 0
    assert found["max"] == max(one.ran_s for one in history.work.attempts)


def test_the_account_of_time_loses_none(history):
    edges = [history.now_s * one / 37 for one in range(38)]
    account = Account(history, edges)
    for cell in range(4):
        assert history.now_s == pytest.approx(sum(account.of(cell)))
        assert all(spent >= 0 for spent in account.of(cell))
        for part in account.seconds[cell]:
            assert history.now_s / 37 == pytest.approx(sum(part))
    total = dict(zip(CAUSES, account.total(), strict=True))

    assert all(sum(account.by_slice(one)) == pytest.approx(total[one]) for one in Cause)


def test_time_goes_to_the_cause_it_has(history):
    """Invented facts say 3 s for each of 16 claims a step, 0.6 s for an update, 1.5 s to load."""
    account = dict(zip(CAUSES, Account(history, [0.0, history.now_s]).total(), strict=True))
    spans = [one for cell in range(4) for one in history.fleet.spans(cell, 0.0, history.now_s)]

    def spent(*states):
        return sum(one.end_s - one.start_s for one in spans if one.state in states)

    assert account[Cause.TRAINING] == pytest.approx(12 * (16 * 3.0 + 0.6), rel=0.2)
    assert account[Cause.SWITCHING] + account[Cause.WEIGHTS] == pytest.approx(
        spent(CellState.ENTERING, CellState.LEAVING)
    )
    homes = PANELS["transitions"](history, view(history.now_s))["rows"]["into_training"].count(
        False
    )
    assert account[Cause.WEIGHTS] == pytest.approx(1.5 * homes)
    assert account[Cause.SERVING] + account[Cause.EMPTY] == pytest.approx(spent(CellState.SERVING))
    assert account[Cause.SERVING] == pytest.approx(
        sum(one.ran_s for one in history.work.attempts) / SMALL.shape.cell_capacity, rel=0.25
    )


def test_without_facts_on_claims_all_time_in_training_is_work():
    history = story_of(simulated(SMALL)[1])
    found = dict(zip(CAUSES, Account(history, [0.0, history.now_s]).total(), strict=True))

    assert found[Cause.TRAINING] > 0 == found[Cause.ROLLOUTS]


def test_what_keeps_the_next_cell_at_home_is_said(history):
    seen = {moment(history, one.at_s)["entering"]["why"] for one in history.levels}

    assert {"waterlevel", "supply", "burst end", "switching"} <= seen
    for at_s, _ in history.entered:
        just_before = moment(history, at_s - 1e-3)["entering"]
        assert just_before["why"] in ("waterlevel", "dwell", "supply", "switching", "burst end")


def test_of_a_run_that_stopped_itself_nothing_is_left(facts):
    half = facts[: len(facts) // 2]
    now = half[-1][0]
    stopped = moment(story_of([*half, (now, RunEnded(reason="the disk"))]), now)

    assert moment(story_of(half), now)["left_s"] > 0
    assert (0.0, "over") == (stopped["left_s"], stopped["entering"]["why"])


def test_targets_that_were_clipped_are_a_part_of_all_targets(facts):
    """Which of raised and of lowered ones were clipped are parts of each."""
    measures = Measures(
        num_targets=50,
        num_capped=5,
        num_raised=10,
        num_raised_clipped=8,
        num_lowered=30,
        num_lowered_clipped=12,
        sum_ratio=50.0,
        max_gap=0.5,
    )
    told = [
        (now, replace(fact, measures=measures) if isinstance(fact, ClaimTrained) else fact)
        for now, fact in facts
    ]
    found = PANELS["steps"](story_of(told), view(told[-1][0]))
    parts = [found[name][0] for name in ("raised_clipped", "lowered_clipped", "clipped", "capped")]

    assert [0.8, 0.4, 0.4, 0.1] == parts


def test_faults_are_told_with_their_time(history):
    found = PANELS["faults"](history, view(history.now_s))

    assert {"checkpoint failed": 1} == found["counts"]
    assert "checkpoint of version 3 was not written: the disk is full" == found["rows"][0]["text"]
    assert [] == PANELS["faults"](history, view(1.0))["rows"]


def test_a_checkpoint_is_told_once_and_with_its_time():
    made = CheckpointMade(
        version=3,
        digest="d",
        num_bytes=100,
        has_optimizer=True,
        stalled_s=0.5,
        copied_s=1.0,
        seconds=4.0,
    )
    history = story_of([(0.0, RunStarted()), (9.0, made), (12.0, made)])
    found = panels(history, view(20.0), ["checkpoints"])["checkpoints"]

    assert {"at_s": [9.0], "version": [3], "seconds": [4.0], "stalled_s": [0.5]} == {
        name: found[name] for name in ("at_s", "version", "seconds", "stalled_s")
    }
    assert [] == panels(history, view(8.0), ["checkpoints"])["checkpoints"]["at_s"]
    assert [{"at_s": 9.0, "text": "checkpoint of version 3 is durable, 100 bytes in 4.0 s"}] == (
        NewsCursor().lines(history)
    )


def test_executions_are_listed_page_by_page(history):
    whole = listed(history, ListingQuery(at_s=history.now_s, limit=1000))
    pages = [
        row
        for offset in range(0, whole["total"], 100)
        for row in listed(history, ListingQuery(at_s=history.now_s, offset=offset))["rows"]
    ]

    assert whole["total"] == len(history.work.attempts) == len(pages)
    assert whole["rows"] == pages


@pytest.mark.parametrize("order", ORDERS)
def test_executions_are_listed_in_the_order_asked_for(history, order):
    rows = listed(history, ListingQuery(at_s=history.now_s, limit=1000, order=order))["rows"]
    keys = {
        "group": [(one["group"], one["member"]) for one in rows],
        "name": [one["execution"] for one in rows],
        "ended": [-one["ended_s"] for one in rows],
        "ran": [-one["ran_s"] for one in rows],
        "score": [2.0 if one["score"] is None else one["score"] for one in rows],
    }

    assert sorted(keys[order]) == keys[order]


def test_executions_are_chosen_by_group_ending_and_outcome(history):
    def rows(**chosen):
        return listed(history, ListingQuery(at_s=history.now_s, limit=1000, **chosen))["rows"]

    assert [3] * 8 == [one["group"] for one in rows(group=3)]
    assert {"timed-out"} == {one["ending"] for one in rows(ending=Ending.TIMED_OUT)}
    assert {"excluded"} == {one["outcome"] for one in rows(outcome=Outcome.EXCLUDED)}


def test_news_is_what_was_not_told_before(facts):
    history, newest = RunHistory(SMALL.shape), NewsCursor()
    told_of = []
    for at, (now, fact) in enumerate(facts):
        history.record(now, fact)
        if at % 500 == 0:
            told_of += newest.lines(history)
    told_of += newest.lines(history)
    texts = [one["text"] for one in told_of]

    assert 12 == sum(text.startswith("step ") for text in texts)
    assert 4 == sum("published" in text for text in texts)
    assert 1 == sum("disk is full" in text for text in texts)
    assert [] == newest.lines(history)


def test_a_run_that_nothing_happened_in_has_panels():
    history = RunHistory(replace(SMALL.shape, steps=None))

    assert set(PANELS) == set(panels(history, view(0.0), PANELS))
    assert 0 == moment(history, 0.0)["waterlevel"]
