"""A run's story against the books of the simulation that it tells of."""

from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, simulated, told
from tests.simulator.support.scenes import scenario

from gyre.journal.journal import Resumed
from gyre.observability.dashboard.panels_steps import admission_phase, completion_phase
from gyre.observability.dashboard.views import hindrance
from gyre.observability.history.run import RunHistory
from gyre.observability.ledgers import ledgers_of
from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellTraining,
    EngineLost,
    EngineReturned,
    RunStarted,
)
from gyre.scheduler.policies import Async, Boundary, Colocate, Continuous, Elastic
from gyre.simulator.scenario import FaultRates
from gyre.types.run_events import (
    CallsDamaged,
    CellRestarted,
    CheckpointFailed,
    CheckpointRefused,
    EngineSlow,
    ExecutionRelaunched,
    GroupDrawn,
    GroupPacked,
    JournalWaited,
    ProxyRestarted,
    RewardGiven,
    StepReplayed,
)

SHAPES = {
    "elastic": {"placement": Elastic()},
    "waiting for its batch": {"placement": Elastic(streaming=False)},
    "colocate": {"placement": Colocate()},
    "async": {"placement": Async(), "standalone_capacities": (48, 48)},
    "beside others": {"placement": Elastic(), "standalone_capacities": (16,)},
    "surplus": {"placement": Elastic(), "surplus": 2, "executions_per_group": 6},
    "continuous": {"placement": Elastic(), "dispatch": Continuous(depth=12)},
}


def small(**changes):
    """The small run in another shape."""
    return replace(SMALL, shape=replace(SMALL.shape, **changes))


def story_of(one, facts):
    history = RunHistory(one.shape)
    history.record_all(facts)
    return history


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def run(request):
    """The record of a run, and its story from the events alone."""
    one = small(**request.param)
    record, events = simulated(one)
    return record, story_of(one, events)


@pytest.fixture(scope="module")
def history():
    """With the facts for people that a live run would have written."""
    return story_of(SMALL, told(simulated(SMALL)[1]))


def test_cells_did_in_the_story_what_they_did_in_the_run(run):
    record, history = run
    for cell, intervals in enumerate(record.roles):
        expected = [(one.start_s, one.end_s) for one in intervals]
        found = list(history.fleet.spans(cell, 0.0, record.end_s))

        assert expected == [(one.start_s, one.end_s) for one in found]
        assert [one.role.value for one in intervals] == [
            one.state.value.replace("serving", "rollout") for one in found
        ]


def test_water_and_room_are_those_of_the_run_at_every_time(run):
    record, history = run
    last = {one.at_s: one for one in record.levels}
    assert len(last) > 100
    for level in last.values():
        found = history.level_at(level.at_s)

        assert (level.running, level.capacity) == (found.running, found.capacity)
        assert level.num_ready == found.ready


def test_steps_are_those_of_the_run(run):
    record, history = run
    expected = [
        (one.number, one.at_s, one.took_s, one.staleness, one.num_void) for one in record.steps
    ]

    assert expected == [
        (one.number, one.at_s, one.took_s, one.ages, one.num_void) for one in history.steps.rows
    ]
    assert record.identity_holds == all(one.identity.holds for one in history.steps.rows)


def test_phases_of_admission_and_readiness_are_those_of_the_run(run):
    record, history = run

    assert pytest.approx(record.staleness.admission_phase) == admission_phase(history, record.end_s)
    assert pytest.approx(record.staleness.completion_phase) == completion_phase(
        history, record.end_s
    )


def test_executions_end_and_close_as_the_scheduler_counted_them(run):
    record, history = run
    ledger = history.scheduler.ledger
    assert {one.value: many for one, many in ledger.outcomes.items()} == (
        history.work.outcomes_at(record.end_s)
    )
    assert record.counts.executions_timed_out == history.work.endings_at(record.end_s)["timed-out"]
    assert record.counts.executions_terminated == sum(
        history.work.endings_at(record.end_s).values()
    )


def test_every_outstanding_group_is_in_one_state(run):
    _, history = run
    for level in history.levels:
        states = level.queued_groups + level.running_groups + level.assessing_groups
        admitted = level.dispatched // history.shape.group_size

        assert admitted == states + level.ready + level.assigned + level.trained + level.void
        assert min(level.queued_groups, level.running_groups, level.assessing_groups) >= 0


def test_every_running_execution_sits_at_an_engine(run):
    _, history = run
    engines = range(len(history.load.seats))
    for level in history.levels:
        loads = [history.load.load_at(engine, level.at_s) for engine in engines]

        assert level.running == sum(loads)


def test_a_cell_that_nothing_keeps_at_home_was_sent(run):
    """What the story says of the rules is said with the run's own numbers."""
    _, history = run
    cells = range(history.shape.num_cells)
    reasons = set()
    for level in history.levels[1:-1]:
        states = [history.fleet.change_at(cell, level.at_s).state for cell in cells]
        reasons.add(hindrance(history.shape, level, states, level.at_s))

    assert None not in reasons
    assert ("fixed split" in reasons) == isinstance(history.shape.placement, Async)


def test_a_query_is_as_long_as_its_longest_execution(history):
    work = history.work
    for query in work.queries:
        longest = max(one.ran_s for one in work.members(query.number) if one.ran_s is not None)

        assert longest in [one.seconds for one in work.longest]
    assert len(work.queries) == len(work.longest)


def test_time_between_the_last_step_of_a_burst_and_its_publication_is_known(history):
    """Satellites take 40 s home, and a publication 60 s."""
    shape = SMALL.shape
    bursts = shape.steps // shape.steps_per_burst

    assert history.publishing_since_s is None
    assert bursts * 100.0 == pytest.approx(history.publishing.inside(0.0, history.now_s))


def test_facts_that_come_twice_count_once():
    facts = list(told(simulated(SMALL)[1]))
    twice = [one for pair in zip(facts, facts, strict=True) for one in pair]
    once, again = story_of(SMALL, facts), story_of(SMALL, twice)

    assert once.levels == again.levels
    assert once.steps.rows == again.steps.rows
    assert once.work == again.work
    assert len(once.fleet.transitions) == len(again.fleet.transitions)
    assert once.load.busy[0].inside(0, once.now_s) == again.load.busy[0].inside(0, once.now_s)


def test_outcomes_and_steps_are_those_that_facts_alone_add_up_to():
    """Without a scheduler, as the ledgers count them."""
    facts = list(told(simulated(SMALL)[1]))
    history, found = story_of(SMALL, facts), ledgers_of(SMALL.shape, (fact for _, fact in facts))
    outcomes = history.work.outcomes_at(history.now_s)
    tokens = sum(fact.num_tokens for _, fact in facts if isinstance(fact, GroupPacked))

    assert found.balance
    assert {
        "valid": found.executions.valid,
        "excluded": found.executions.excluded,
        "placeholder": found.executions.placeholder,
        "surplus": found.executions.surplus,
    } == outcomes
    assert found.groups.admitted == len(history.work.queries)
    assert found.groups.trained + found.groups.void == sum(
        groups for one in history.steps.rows for _, groups in one.ages
    )
    assert tokens == sum(one.packed.tokens for one in history.steps.rows)


def test_deaths_and_returns_are_faults_that_were_mended():
    one = replace(
        scenario(
            groups_per_batch=4,
            executions_per_group=4,
            num_cells=3,
            cell_capacity=8,
            steps=12,
            dispatch=Boundary(extra_dispatch=0.5),
            costs=SMALL.costs,
            faults=FaultRates(mean_life_h=8.0, restart_s=600.0),
        ),
        workload=SMALL.workload,
    )
    record, events = simulated(one)
    history = story_of(one, events)
    died = [fault for fault in history.faults.rows if fault.kind == "cell died"]
    times = [now for now, event in events if isinstance(event, CellDied)]
    recovered = [now for now, event in events if isinstance(event, CellRecovered)]

    assert record.counts.cells_died == len(died) > 1
    assert times == [fault.at_s for fault in died]
    assert (
        set(recovered) >= {one.mended_at_s for one in died if one.mended_at_s is not None} != set()
    )


def test_an_engine_that_is_missed_is_a_fault_until_it_returns():
    """Engine 4 stands alone; cell 0 is in training, where nobody misses its engine."""
    one = small(standalone_capacities=(16,))
    events = simulated(one)[1]
    until = next(at for at, (_, event) in enumerate(events) if isinstance(event, CellTraining))
    now = events[until][0]
    lost = [(now, EngineLost(engine=engine)) for engine in (4, 4, 0)]
    back = (now + 7.0, EngineReturned(engine=4, version=0))
    history = story_of(one, [*events[: until + 1], *lost, back])

    assert [("engine lost", None, 4, now, now + 7.0)] == [
        (fault.kind, fault.cell, fault.engine, fault.at_s, fault.mended_at_s)
        for fault in history.faults.rows
    ]
    assert ["serving", "fenced", "serving"] == [
        change.state.value for change in history.fleet.changes[4]
    ]


def test_every_fact_that_tells_of_a_fault_is_among_them():
    """With when it began, where its end is what is journaled."""
    facts = [
        CellRestarted(cell=1, attempt=2, trainer_version=0, seconds=4.0),
        EngineSlow(engine=2, token_s=0.5, peers_token_s=0.1),
        StepReplayed(step=0, num_claims=3, gradient_norm=1.0, is_equal=True),
        CheckpointFailed(version=1, reason="the disk is full"),
        CheckpointRefused(version=1, reason="a hash differs"),
        ExecutionRelaunched(group=0, member=0, execution="g00000-00a", reason="its key was lost"),
        CallsDamaged(group=0, execution="g00000-00a", reason="a checksum differs"),
        ProxyRestarted(seconds=3.0),
        JournalWaited(seconds=2.0, reason="the disk is full"),
        Resumed(at=1.0),
    ]
    history = RunHistory(SMALL.shape)
    history.record_all([(0.0, RunStarted()), *((10.0, one) for one in facts)])
    found = {
        one.kind: (one.at_s, one.mended_at_s, one.cell, one.engine) for one in history.faults.rows
    }

    assert {
        "cell restarted": (6.0, 10.0, 1, None),
        "engine slow": (10.0, None, None, 2),
        "step replayed": (10.0, None, 0, None),
        "checkpoint failed": (10.0, None, None, None),
        "checkpoint refused": (10.0, None, None, None),
        "execution relaunched": (10.0, None, None, None),
        "calls damaged": (10.0, None, None, None),
        "proxy restarted": (7.0, 10.0, None, None),
        "journal waited": (8.0, 10.0, None, None),
        "resumed": (10.0, None, None, None),
    } == found
    assert "cell 1 was started again after 2 starts in vain" == (history.faults.rows[0].text)


def test_a_name_that_changes_is_the_last_one():
    facts = [
        (0.0, GroupDrawn(group=0, position=0, task="t", executions=tuple("abcdefgh"))),
        (1.0, ExecutionRelaunched(group=0, member=1, execution="b-02", reason="lost")),
        (1.0, RewardGiven(group=0, member=2, execution="c-09", score=0.5, ran_s=None)),
        (1.0, RewardGiven(group=99_999, member=0, execution="x", score=0.5, ran_s=None)),
    ]
    history = RunHistory(SMALL.shape)
    first = next(iter(simulated(SMALL)[1]))
    history.record_all([first, *facts])

    assert ["a", "b-02", "c-09"] == [one.name for one in history.work.members(0)[:3]]
    assert ("t", 0.5) == (history.work.queries[0].task, history.work.attempt(0, 2).score)
