"""The virtual-time host: times computed by hand, nothing lost, same seed same record, replay."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.support.scenes import LONG, scenario

from gyre.batching.group_buffer import BatchAssembler
from gyre.scheduler.messages import (
    EnterTraining,
    ExecutionClosed,
    GroupAssigned,
    LeaveReason,
    LeaveTraining,
    StopReason,
)
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Elastic,
    LongestFirst,
    Resumable,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.simulator.engines import EventQueue, SimulatedEngines
from gyre.simulator.paper import PAPER
from gyre.simulator.result import MOST_LEVELS, Role
from gyre.simulator.scenario import Estimates, FaultRates
from gyre.simulator.workload import (
    ByGroups,
    Costs,
    Decode,
    Drift,
    Failures,
    LogNormal,
    RewardDurations,
    SimulatedDeadlines,
    SimulatedExecution,
    sizes,
)
from gyre.simulator.world import EventLog, World, run
from gyre.types.errors import ConfigError, InternalError
from gyre.types.ids import EngineId, GroupId
from gyre.types.outcomes import Ending

HOUR = 3600.0


def hours(record):
    return [pytest.approx(step.at_s / HOUR, abs=1e-9) for step in record.steps]


# Times computed by hand


def test_a_step_is_the_longest_execution_and_then_training():
    record = run(scenario())

    assert [3.0] == hours(record)
    assert StopReason.FINISHED is record.stopped


def test_a_second_step_begins_when_the_first_is_published():
    record = run(scenario([(1.0, 2.0), (0.5, 0.25)], steps=2))

    assert [3.0, 3.0 + 0.5 + 1.0] == hours(record)


def test_every_cost_is_paid_once_and_in_its_place():
    costs = Costs(
        training=ByGroups(groups_per_node_hour=1.0),
        into_training_s=36.0,
        out_of_training_s=72.0,
        update_s=180.0,
        publication_s=360.0,
    )
    record = run(scenario([(1.0, 2.0), (0.5, 0.25)], steps=2, costs=costs, supply_dwell_s=18.0))

    first = 2.0 + 0.005 + 0.01 + 1.0 + 0.05
    second = first + 0.1 + 0.02 + 0.5 + 0.005 + 0.01 + 1.0 + 0.05
    assert [first, second] == hours(record)


def test_extra_dispatch_hides_rollout_behind_training():
    """Two groups are out from the start, and a third comes with the first publication."""
    standing = {
        "placement": Async(),
        "dispatch": Boundary(extra_dispatch=1),
        "standalone_capacities": (4,),
    }
    record = run(scenario([(0.5, 0.5), (1.0, 1.0), (0.25, 0.25)], steps=3, **standing))

    assert [1.5, 2.5, 3.5] == hours(record)
    assert [((0, 1),), ((1, 1),), ((1, 1),)] == [step.staleness for step in record.steps]


def test_without_streaming_a_burst_waits_for_all_its_groups():
    burst = {"groups_per_batch": 2, "cell_capacity": 4, "standalone_capacities": (4,)}
    work = [(1.0, 1.0), (3.0, 3.0)]

    streamed = run(scenario(work, placement=Async(), supply_fraction=0.5, **burst))
    batched = run(scenario(work, placement=Async(streaming=False), **burst))

    assert [3.0 + 1.0] == hours(streamed)
    assert [3.0 + 2.0] == hours(batched)


def test_two_cells_share_the_claims_of_one_group():
    """Four executions of one group, a quarter of an hour each, on two cells."""
    record = run(scenario([(1.0,) * 4], executions_per_group=4, num_cells=2, placement=Colocate()))

    assert [1.5] == hours(record)
    assert 2 == record.steps[0].num_cells


def test_a_satellite_pulls_before_it_claims():
    costs = Costs(training=ByGroups(groups_per_node_hour=1.0), pull_s=900.0)
    four = {"executions_per_group": 4, "num_cells": 2, "placement": Colocate()}
    record = run(scenario([(1.0,) * 4], costs=costs, **four))

    # Quarters of an hour: the core does the first alone, then both do one, and the last is the
    # core's own.
    assert [1.75] == hours(record)


def test_the_core_waits_for_a_pull_only_within_the_joining_window():
    costs = Costs(training=ByGroups(groups_per_node_hour=1.0), pull_s=3700.0)
    four = {"executions_per_group": 4, "num_cells": 2, "placement": Colocate()}

    waited = run(scenario([(1.0,) * 4], costs=costs, join_s=200.0, **four))
    left = run(scenario([(1.0,) * 4], costs=costs, join_s=50.0, **four))

    assert [1.0 + 3700 / HOUR] == hours(waited)
    assert [2.0] == hours(left)


def test_evaluation_delays_the_group_and_holds_its_slot_only_if_told():
    work = [(1.0, 1.0), (1.0, 1.0)]
    shape = {"groups_per_batch": 2, "evaluations": RewardDurations(mean_h=0.5)}

    free = run(scenario(work, **shape))
    held = run(scenario(work, evaluation_holds_slot=True, **shape))

    # The second evaluation is hidden behind the first group's training, unless it keeps the cell.
    assert [1.0 + 1.0 + 2.0] == hours(free)
    assert [1.5 + 1.5 + 2.0] == hours(held)


def test_a_paused_execution_goes_on_where_it_stood():
    """The idealised Colocate trains the first group while the second stands still, uncharged."""
    work = [(1.0, 1.0), (2.0, 2.0)]
    record = run(
        scenario(
            work,
            steps=2,
            cell_capacity=4,
            dispatch=Continuous(depth=2),
            placement=Resumable(),
            deadlines=SimulatedDeadlines(harness_h=2.0, overall_h=3.0),
        )
    )

    assert [2.0, 4.0] == hours(record)
    assert 0 == record.counts.executions_timed_out


def test_drift_follows_the_step_of_admission():
    drift = Drift(to=0.5, first_step=1, last_step=2)
    record = run(scenario([(1.0, 1.0)], steps=2, drift=drift))

    assert [2.0, 2.0 + 0.5 + 1.0] == hours(record)


def test_the_longest_group_goes_first_when_estimates_say_so():
    """Two slots: the long group first hides behind the training of nothing, the short one waits."""
    work = [(1.0, 1.0), (3.0, 3.0)]
    shape = {"groups_per_batch": 2, "num_cells": 2, "cell_capacity": 1, "supply_fraction": 0.5}
    log = EventLog()

    run(scenario(work, launch_order=LongestFirst(), estimates=Estimates(), **shape), log=log)

    closed = [one.group for _, one, _ in log.entries if isinstance(one, ExecutionClosed)]
    assert [1, 1, 0, 0] == closed


# Load-dependent decode


def drawn(work_h, ending=Ending.COMPLETED):
    return SimulatedExecution(
        work_s=work_h * HOUR, ending=ending, evaluation_s=0.0, is_assessable=True, tokens=0.0
    )


def ends(launches, *, capacity=2, share=0.5, deadlines=LONG, engines=1):
    """(member, hours, ending) of executions launched at the start, (hours of work, engine) each."""
    agenda = EventQueue()
    found = []

    class Listener:
        def ended(self, running, charged_s, ending):
            found.append((running.key[1], pytest.approx(agenda.now / HOUR), ending))

    serving = SimulatedEngines(
        agenda,
        [capacity] * engines,
        decode=Decode(share=share),
        deadlines=deadlines,
        listener=Listener(),
    )
    for member, (work_h, engine) in enumerate(launches):
        serving.launch((GroupId(0), member), drawn(work_h), EngineId(engine))
    return agenda, serving, found


def drain(agenda):
    while len(agenda):
        agenda.take()()


def test_an_engine_speeds_up_as_it_empties():
    agenda, _, found = ends([(1.0, 0), (2.0, 0)])
    drain(agenda)

    # Full for an hour, then half full at rate 1 / (0.5 + 0.25) for the hour of work that is left.
    assert [(0, 1.0, Ending.COMPLETED), (1, 1.75, Ending.COMPLETED)] == found


def test_load_slows_everybody_and_the_deadline_stays():
    deadlines = SimulatedDeadlines(harness_h=1.25, overall_h=2)
    agenda, _, found = ends([(1.0, 0)] * 4, deadlines=deadlines)
    drain(agenda)

    assert [(member, 1.25, Ending.TIMED_OUT) for member in range(4)] == found


def test_a_move_keeps_the_work_that_is_done():
    agenda, serving, found = ends([(2.0, 0), (2.0, 0)], engines=2)
    agenda.at(HOUR, lambda: serving.move((GroupId(0), 1), EngineId(1)))
    drain(agenda)

    assert [(0, 1.75, Ending.COMPLETED), (1, 1.75, Ending.COMPLETED)] == sorted(
        found, key=lambda one: one[0]
    )


def test_time_without_an_engine_is_neither_work_nor_charged():
    deadlines = SimulatedDeadlines(harness_h=2.5, overall_h=5)
    agenda, serving, found = ends([(2.0, 0)], capacity=1, deadlines=deadlines, engines=2)
    agenda.at(HOUR, lambda: serving.strand(EngineId(0)))
    agenda.at(4 * HOUR, lambda: serving.move((GroupId(0), 0), EngineId(1)))
    drain(agenda)

    assert [(0, 5.0, Ending.COMPLETED)] == found


@given(
    works=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=8),
    share=st.floats(0.0, 0.8),
    capacity=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_processor_sharing_agrees_with_a_slow_and_obvious_simulation(works, share, capacity):
    agenda, _, found = ends([(work, 0) for work in works], capacity=capacity, share=share)
    drain(agenda)

    left, now, expected = dict(enumerate(works)), 0.0, {}
    while left:
        rate = 1 / (1 - share + share * len(left) / capacity)
        passed = min(left.values()) / rate
        now += passed
        left = {member: work - passed * rate for member, work in left.items()}
        for member in [member for member, work in left.items() if work < 1e-9]:
            expected[member] = now
            del left[member]
    assert {member: pytest.approx(at) for member, at in expected.items()} == {
        member: at.expected for member, at, _ in found
    }


# What holds in every world


def some(**changes):
    """A run of six steps with everything in it, in some hundred events."""
    plain = {
        "groups_per_batch": 4,
        "executions_per_group": 4,
        "num_cells": 3,
        "cell_capacity": 8,
        "steps_per_burst": 2,
        "steps": 6,
        "dispatch": Boundary(extra_dispatch=0.5),
        "min_valid": 2,
        "evaluations": RewardDurations(mean_h=0.1, sigma=0.5),
        "costs": Costs(
            training=ByGroups(groups_per_node_hour=8.0),
            into_training_s=10.0,
            out_of_training_s=5.0,
            pull_s=3.0,
            update_s=20.0,
            publication_s=30.0,
        ),
    }
    one = scenario(**plain | changes)
    spread = replace(one.workload, durations=LogNormal(log_mean=0.0, sigma=0.5), between=0.4)
    return replace(one, workload=spread)


KINDS = {
    "elastic": {},
    "elastic, non-streaming": {"placement": Elastic(streaming=False)},
    "async": {"placement": Async(), "standalone_capacities": (8, 4)},
    "async, non-streaming": {"placement": Async(streaming=False), "standalone_capacities": (9,)},
    "colocate": {"placement": Colocate(), "standalone_capacities": (8,)},
    "colocate, non-streaming": {
        "placement": Colocate(streaming=False),
        "dispatch": Boundary(extra_dispatch=0),
    },
    "continuous": {"dispatch": Continuous(depth=4)},
    "continuous, async": {
        "dispatch": Continuous(depth=5),
        "placement": Async(),
        "standalone_capacities": (16,),
    },
    "resumable": {"dispatch": Continuous(depth=6), "placement": Resumable()},
    "one cell": {"num_cells": 1, "cell_capacity": 16},
    "surplus": {"surplus": 1},
    "overcommitted": {"overcommit": 1.5, "decode": Decode(share=0.5)},
    "longest first": {"launch_order": LongestFirst(), "estimates": Estimates(sigma=0.3)},
    "failures": {"failures": Failures(crashed=0.1, never_started=0.1, void=0.05)},
    "endless": {"endless_dispatch": True},
}
kinds = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())


@kinds
def test_every_kind_of_run_finishes_with_its_books_balanced(changes):
    one = some(**changes)
    record = run(one)

    counts = record.counts
    assert StopReason.FINISHED is record.stopped
    assert 6 == len(record.steps)
    assert 24 == counts.groups_trained + counts.groups_void
    assert record.identity_holds
    assert one.num_nodes * record.end_s == pytest.approx(record.node_s.total)
    assert record.bounds.latency_s <= record.end_s
    assert record.bounds.packing_s <= record.end_s or "overcommit" in changes
    for cell in record.roles:
        assert [0.0, *[one.end_s for one in cell]] == [*[one.start_s for one in cell], record.end_s]


@kinds
def test_work_done_is_work_drawn(changes):
    """Every kept execution is claimed once, and training takes what its groups cost."""
    record = run(some(**changes))

    groups = record.counts.groups_trained
    assert groups / 8.0 == pytest.approx(record.node_s.training_busy / HOUR)
    assert sum(step.training_cell_s for step in record.steps) == pytest.approx(
        record.node_s.training_busy
    )
    if "failures" not in changes:
        assert 4 * groups == record.counts.claims_done


def test_work_that_is_done_twice_is_noticed(monkeypatch):
    """The same conservation with a planted fault: each group's first claim is queued twice."""

    def doubled(executions, *, per_claim):
        whole = sizes(executions, per_claim=per_claim)
        return (whole[0], *whole)

    monkeypatch.setattr("gyre.simulator.training.sizes", doubled)
    record = run(some())

    groups = record.counts.groups_trained
    assert 4 * groups != record.counts.claims_done
    assert groups / 8.0 != pytest.approx(record.node_s.training_busy / HOUR)


@kinds
def test_the_same_seed_gives_the_same_record_and_another_does_not(changes):
    one = some(**changes)

    assert run(one) == run(one)
    assert run(one).end_s != run(replace(one, seed=1)).end_s


def replayed(one, entries):
    """The orders of a fresh scheduler that is told the same."""
    scheduler = Scheduler(one.shape)
    return [tuple(scheduler.handle(event, now)) for now, event, _ in entries]


@kinds
def test_a_recorded_log_replays_to_the_same_orders(changes):
    one = some(**changes, faults=FaultRates(mean_life_h=20.0, failed_transitions=0.1))
    log = EventLog()
    run(one, log=log)

    assert [commands for _, _, commands in log.entries] == replayed(one, log.entries)


def test_a_log_that_lacks_an_event_is_refused():
    one = some()
    log = EventLog()
    run(one, log=log)
    decisive = next(
        at
        for at, (_, _, commands) in enumerate(log.entries)
        if any(isinstance(command, EnterTraining) for command in commands)
    )
    del log.entries[decisive]

    with pytest.raises(InternalError, match="not open"):
        replayed(one, log.entries)


@pytest.mark.parametrize("name", PAPER)
def test_the_identity_holds_at_every_update_of_every_preset(name):
    one = PAPER[name]
    short = replace(one, shape=replace(one.shape, steps=one.shape.steps_per_burst))
    record = run(replace(short, executions_per_claim=16))

    assert record.identity_holds
    assert one.shape.steps_per_burst == len(record.steps)


def test_a_wrong_age_breaks_the_identity():
    identity = run(some()).steps[-1].identity

    assert identity.holds
    assert not replace(identity, consumed=identity.consumed + 1).holds


def test_mean_staleness_is_predicted_in_the_long_run():
    record = run(some(steps=200, executions_per_claim=4))

    assert 1.0 == record.staleness.predicted
    assert record.staleness.predicted == pytest.approx(record.staleness.mean, abs=0.02)
    assert 0.0 == record.staleness.admission_phase


def test_continuous_dispatch_has_its_own_prediction():
    record = run(some(steps=200, executions_per_claim=4, **KINDS["continuous"]))

    assert record.staleness.predicted == pytest.approx(record.staleness.mean, abs=0.02)
    assert 0.0 < record.staleness.admission_phase < 1.0


def test_a_long_run_keeps_few_levels():
    record = run(some(steps=400, executions_per_claim=4))

    assert record.counts.events > 4 * MOST_LEVELS
    assert len(record.levels) <= MOST_LEVELS + 1
    times = [level.at_s for level in record.levels]
    assert times == sorted(times)
    assert 0.0 == times[0]
    assert record.end_s == times[-1]


def test_satellites_join_and_the_last_cell_keeps_serving():
    """What the lazy packing buffer is for: later cells train less."""
    record = run(PAPER["E0"])

    shares = [
        sum(span.end_s - span.start_s for span in spans if span.role is Role.TRAINING)
        for spans in record.roles
    ]
    assert 8 == len(shares)
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[2]
    assert shares[7] < shares[0] / 4
    assert Role.ROLLOUT is record.roles[0][0].role


def test_satellites_never_join_a_buffer_that_is_not_lazy(monkeypatch):
    """The counter-example: what is pulled at once is no supply, and the core trains alone."""
    eager = property(lambda packing: packing.num_needed > 0 and packing._batch.unpacked is None)
    one = PAPER["E0"]
    short = replace(one, shape=replace(one.shape, steps=3))
    lazy = run(short)
    monkeypatch.setattr(BatchAssembler, "wants_group", eager)
    hasty = run(short)

    assert 1 == max(step.num_cells for step in hasty.steps)
    assert 1 < max(step.num_cells for step in lazy.steps)
    assert hasty.hours > 2 * lazy.hours


# Faults


@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 2**16),
    life_h=st.sampled_from([2.0, 6.0, 30.0, inf]),
    failed=st.sampled_from([0.0, 0.1, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_faults_do_not_hang_a_run(kind, seed, life_h, failed):
    faults = FaultRates(mean_life_h=life_h, restart_s=300.0, failed_transitions=failed)
    record = run(some(**KINDS[kind], faults=faults, seed=seed))

    assert record.stopped in (StopReason.FINISHED, StopReason.CORE_FAILED, StopReason.TOO_MANY_VOID)
    assert record.identity_holds
    if record.stopped is StopReason.FINISHED:
        assert 24 == record.counts.groups_trained + record.counts.groups_void


def test_deaths_cost_time_and_return_claims():
    quiet = run(some(seed=3))
    harmed = run(some(seed=3, faults=FaultRates(mean_life_h=2.0, restart_s=600.0)))

    assert 0 == quiet.counts.cells_died == quiet.counts.claims_returned
    assert 0 < harmed.counts.cells_died
    assert harmed.hours > quiet.hours
    assert harmed.node_s.away > 0


def test_a_world_that_forgets_to_answer_stands_still(monkeypatch):
    """The planted fault that the test above would find: a cell never says that it is home."""
    monkeypatch.setattr(World, "_home", lambda world, cell, transition: None)
    record = run(some())

    assert record.stopped is None
    assert len(record.steps) < 6


def test_a_cell_that_arrives_after_the_burst_turns_back():
    log = EventLog()
    slow = Costs(training=ByGroups(groups_per_node_hour=8.0), into_training_s=1500.0)
    record = run(some(costs=slow, supply_fraction=0.25), log=log)

    reasons = [
        command.reason
        for _, _, commands in log.entries
        for command in commands
        if isinstance(command, LeaveTraining)
    ]
    assert LeaveReason.AFTER_BURST in reasons
    assert 0 < record.counts.cells_turned_back
    assert StopReason.FINISHED is record.stopped


def test_groups_are_pulled_lazily():
    """A batch of many ready groups is not assigned at once: claims wait in few groups."""
    log = EventLog()
    run(some(placement=Async(), standalone_capacities=(64,), supply_fraction=1.0), log=log)

    pulled = [now for now, event, _ in log.entries if isinstance(event, GroupAssigned)]
    assert len(set(pulled)) > len(pulled) / 2


@pytest.mark.parametrize("life_h", [1e-300, 1e-9, 0.01])
def test_cells_that_die_before_they_do_anything_end_the_simulation_by_name(life_h):
    faults = FaultRates(mean_life_h=life_h, restart_s=600.0)
    with pytest.raises(ConfigError, match=r"faults\.mean_life_h: a longer life, .* no step was"):
        run(some(seed=3, faults=faults))
