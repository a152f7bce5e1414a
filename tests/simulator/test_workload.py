"""Work for the simulator: published durations, deadlines, and draws that no order changes."""

import math
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.simulator.workload import (
    HOUR_S,
    NL2REPO_122B,
    ByGroups,
    ByTokens,
    ClaimSize,
    Costs,
    Decode,
    Drift,
    Failures,
    LogNormal,
    Quantiles,
    ReplayedDurations,
    RewardDurations,
    SimulatedDeadlines,
    SimulatedExecution,
    Workload,
    WorkloadDraws,
    sizes,
)
from gyre.types.errors import ConfigError
from gyre.types.outcomes import Ending, Outcome

PLAIN = Workload(
    durations=LogNormal(log_mean=0.0, sigma=0.5),
    deadlines=SimulatedDeadlines(harness_h=50, overall_h=60),
)
"""Nothing fails, and hardly anything is cut."""


def hours(workload, *, seed=0, groups=2000, size=16):
    """Hours of work per group."""
    draws = WorkloadDraws(workload, seed=seed, group_size=size)
    return [[one.work_s / HOUR_S for one in draws.group(number)] for number in range(groups)]


def courses(workload, *, seed=0, groups=2000):
    draws = WorkloadDraws(workload, seed=seed, group_size=16)
    return [
        [one.course(workload.deadlines) for one in draws.group(number)] for number in range(groups)
    ]


@pytest.fixture(scope="module")
def published():
    return courses(NL2REPO_122B, groups=6000)


def test_the_mean_execution_lasts_as_published(published):
    """1.93 h per execution; 96,000 correlated draws leave 0.01 h of noise."""
    found = mean(one.total_s for group in published for one in group) / HOUR_S

    assert found == pytest.approx(1.93, abs=0.03)


def test_the_mean_query_lasts_as_published(published):
    """2.96 h for the longest of 16."""
    found = mean(max(one.total_s for one in group) for group in published) / HOUR_S

    assert found == pytest.approx(2.96, abs=0.04)


def test_as_many_queries_last_four_hours_as_published(published):
    """9.51 %; six thousand queries leave a standard error of 0.4 %."""
    found = mean(max(one.total_s for one in group) >= 4 * HOUR_S for group in published)

    assert found == pytest.approx(0.0951, abs=0.012)


def test_as_many_harnesses_run_out_of_time_as_published(published):
    """6.25 %, those that run out of all time aside; the formula without noise says it too."""
    late = [
        one.ending is Ending.TIMED_OUT and one.closing.outcome is Outcome.VALID
        for group in published
        for one in group
    ]
    durations = NL2REPO_122B.durations
    beyond = (math.log(3.0) - durations.log_mean) / durations.sigma

    assert mean(late) == pytest.approx(0.0625, abs=0.004)
    assert math.erfc(beyond / math.sqrt(2)) / 2 == pytest.approx(0.0625, abs=0.0003)


def test_as_many_executions_run_out_of_all_time_as_published(published):
    """0.87 %, and they last exactly as long as they may."""
    over = [one for group in published for one in group if one.closing.outcome is Outcome.EXCLUDED]

    assert len(over) / (16 * len(published)) == pytest.approx(0.0087, abs=0.0012)
    assert {4.25} == {round(one.total_s / HOUR_S, 9) for one in over}


def test_stuck_evaluations_spread_evenly_would_not_give_the_published_queries():
    """The same 0.87 % without clusters makes 13 % of queries last four hours, not 9.5 %."""
    even = replace(NL2REPO_122B.evaluations, stuck_queries=1.0, stuck_within=0.0083)
    found = courses(replace(NL2REPO_122B, evaluations=even), groups=3000)

    share = mean(max(one.total_s for one in group) >= 4 * HOUR_S for group in found)
    assert share > 0.0951 + 0.02


@given(st.permutations(range(6)), st.integers(0, 2**40))
def test_draws_do_not_depend_on_the_order_of_asking(order, seed):
    asked = WorkloadDraws(NL2REPO_122B, seed=seed, group_size=4)
    found = {number: asked.group(number) for number in order}

    assert found == {
        number: WorkloadDraws(NL2REPO_122B, seed=seed, group_size=4).group(number)
        for number in range(6)
    }
    assert 6 == len(set(found.values()))


def test_a_larger_group_holds_the_smaller_one():
    small, large = (WorkloadDraws(NL2REPO_122B, seed=3, group_size=size) for size in (16, 24))

    assert all(small.group(number) == large.group(number)[:16] for number in range(50))


def test_seeds_differ():
    first, second = (WorkloadDraws(NL2REPO_122B, seed=seed, group_size=4) for seed in (0, 1))

    assert all(first.group(number) != second.group(number) for number in range(20))


@pytest.mark.parametrize("between", [0.0, 0.43, 1.0])
def test_the_given_share_of_variance_is_between_queries(between):
    groups = hours(replace(PLAIN, between=between))
    logs = [[math.log(one) for one in group] for group in groups]
    within = mean(sum((one - mean(group)) ** 2 for one in group) / 15 for group in logs)

    assert within / 0.25 == pytest.approx(1 - between, abs=0.03)
    assert mean(map(mean, logs)) == pytest.approx(0, abs=0.05)


def test_quantiles_are_met():
    points = ((0.0, 0.2), (0.5, 1.0), (0.9, 2.0), (1.0, 5.0))
    workload = replace(PLAIN, durations=Quantiles(points=points), between=0.3)
    found = [one for group in hours(workload) for one in group]

    for share, limit in points:
        assert mean(one <= limit for one in found) == pytest.approx(share, abs=0.02)


def test_recorded_durations_are_replayed_group_by_group():
    workload = replace(PLAIN, durations=ReplayedDurations(groups=((1.0, 2.0), (3.0, 4.0, 5.0))))

    assert [[1, 2, 1], [3, 4, 5], [1, 2, 1]] == hours(workload, groups=3, size=3)


DRIFT = Drift(to=0.92, first_step=1, last_step=12)


def test_durations_drift_in_a_straight_line():
    assert [1.0, 1.0, 0.96, 0.92, 0.92] == [
        pytest.approx(DRIFT.factor(step)) for step in (0, 1, 6.5, 12, 40)
    ]
    assert 1.0 == Drift().factor(7)

    draws = WorkloadDraws(replace(PLAIN, drift=DRIFT), seed=0, group_size=2)
    early, late = draws.group(5, step=1), draws.group(5, step=12)

    for one, other in zip(early, late, strict=True):
        assert 0.92 * one.work_s == pytest.approx(other.work_s)


def drawn(**changes):
    plain = SimulatedExecution(
        work_s=2 * HOUR_S,
        ending=Ending.COMPLETED,
        evaluation_s=0.5 * HOUR_S,
        is_assessable=True,
        tokens=0,
    )
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (drawn(), (2.0, Ending.COMPLETED, 0.5, Outcome.VALID)),
        (drawn(work_s=3 * HOUR_S), (3.0, Ending.COMPLETED, 0.5, Outcome.VALID)),
        (drawn(work_s=9 * HOUR_S), (3.0, Ending.TIMED_OUT, 0.5, Outcome.VALID)),
        (drawn(ending=Ending.CRASHED), (2.0, Ending.CRASHED, 0.5, Outcome.VALID)),
        (drawn(evaluation_s=math.inf), (2.0, Ending.COMPLETED, 2.0, Outcome.EXCLUDED)),
        (drawn(is_assessable=False), (2.0, Ending.COMPLETED, 0.5, Outcome.EXCLUDED)),
        (
            drawn(work_s=0.0, ending=Ending.NEVER_STARTED),
            (0.0, Ending.NEVER_STARTED, 0.0, Outcome.PLACEHOLDER),
        ),
    ],
)
def test_deadlines_cut_what_was_drawn(execution, expected):
    """Time-outs and crashes are assessed like anything else (SPEC 6.1)."""
    course = execution.course(SimulatedDeadlines(harness_h=3, overall_h=4))
    closing = course.closing

    found = (course.rollout_s / HOUR_S, course.ending, closing.evaluation_s / HOUR_S)
    assert expected == (*found, closing.outcome)


def test_an_execution_slowed_past_all_time_has_none_left_for_its_evaluation():
    closing = drawn().closing(5 * HOUR_S, SimulatedDeadlines(harness_h=3, overall_h=4))

    assert (0.0, Outcome.EXCLUDED) == (closing.evaluation_s, closing.outcome)


def test_failures_come_in_their_shares():
    failures = Failures(crashed=0.1, never_started=0.05, void=0.2)
    draws = WorkloadDraws(replace(PLAIN, failures=failures), seed=0, group_size=16)
    groups = [draws.group(number) for number in range(1500)]
    endings = [one.ending for group in groups for one in group]

    assert endings.count(Ending.CRASHED) / len(endings) == pytest.approx(0.1, abs=0.01)
    assert endings.count(Ending.NEVER_STARTED) / len(endings) == pytest.approx(0.05, abs=0.01)
    assert mean(not any(one.is_assessable for one in group) for group in groups) == pytest.approx(
        0.2, abs=0.05
    )
    assert all(len({one.is_assessable for one in group}) == 1 for group in groups)


def test_a_crash_shortens_the_work_and_its_tokens():
    healthy = replace(PLAIN, tokens_per_hour=1000.0)
    crashing = replace(healthy, failures=Failures(crashed=1.0))
    pairs = zip(
        WorkloadDraws(healthy, seed=0, group_size=16).group(0),
        WorkloadDraws(crashing, seed=0, group_size=16).group(0),
        strict=True,
    )
    for whole, cut in pairs:
        assert 0 <= cut.work_s < whole.work_s
        assert cut.tokens == pytest.approx(1000 * cut.work_s / HOUR_S)


def test_the_rate_is_one_on_a_full_engine_and_higher_on_an_emptier_one():
    assert [1.0, 1.0, 1.0] == [Decode(share=share).rate(1.0) for share in (0.0, 0.5, 0.8)]
    assert 1.0 == Decode().rate(0.1)
    assert Decode(share=0.8).rate(0.25) == pytest.approx(2.5)
    assert Decode(share=0.5).rate(1.5) == pytest.approx(0.8)


def test_training_costs_by_groups_or_by_tokens():
    size = ClaimSize(groups=0.5, tokens=1e6)

    assert 90.0 == pytest.approx(ByGroups(groups_per_node_hour=2.5).seconds(size, nodes=8))
    assert 125.0 == pytest.approx(ByTokens(tokens_per_node_s=1e3).seconds(size, nodes=8))


def test_a_batch_of_the_published_setting_trains_in_under_half_an_hour_on_all_nodes():
    """32 groups at 2.5 per node-hour on 32 nodes."""
    whole = ByGroups(groups_per_node_hour=2.5).seconds(ClaimSize(groups=32, tokens=0), nodes=32)

    assert 0.4 * HOUR_S == pytest.approx(whole)


@given(st.integers(1, 20), st.integers(1, 20))
def test_claims_of_a_group_hold_whole_executions_and_all_of_it(size, per_claim):
    workload = replace(PLAIN, tokens_per_hour=10.0)
    executions = WorkloadDraws(workload, seed=0, group_size=size).group(0)
    found = sizes(executions, per_claim=per_claim)

    assert math.ceil(size / per_claim) == len(found)
    assert 1 == pytest.approx(sum(one.groups for one in found))
    assert sum(one.tokens for one in executions) == pytest.approx(sum(one.tokens for one in found))


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda: Decode(share=0.9),
        lambda: Decode(share=-0.1),
        lambda: SimulatedDeadlines(harness_h=0, overall_h=1),
        lambda: SimulatedDeadlines(harness_h=2, overall_h=1),
        lambda: SimulatedDeadlines(harness_h=2, overall_h=math.inf),
        lambda: Failures(crashed=0.6, never_started=0.6),
        lambda: RewardDurations(stuck_within=1.5),
        lambda: replace(PLAIN, between=1.1),
        lambda: Drift(to=0.0),
        lambda: Drift(to=0.9, first_step=5, last_step=4),
        lambda: Quantiles(points=((0.0, 1.0), (0.9, 2.0))),
        lambda: Quantiles(points=((0.0, 1.0), (0.5, 3.0), (1.0, 2.0))),
        lambda: ReplayedDurations(groups=()),
        lambda: ReplayedDurations(groups=((1.0,), ())),
        lambda: Costs(training=ByGroups(groups_per_node_hour=1), pull_s=-1),
        lambda: sizes((), per_claim=0),
    ],
)
def test_nonsense_is_refused(nonsense):
    with pytest.raises(ConfigError):
        nonsense()
