"""Step times of fixed pools: algebra in fractions, small worlds, and assumptions that fail."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.theory import theory_staleness, theory_times
from tests.theory.worlds import (
    World,
    exponential,
    log_normal,
    repeated,
    timed_out,
)

from gyre.simulator import theory

WARM_UP = 60

POSITIVE = st.fractions(Fraction(1, 8), 12, max_denominator=16)
PHASES = st.fractions(0, Fraction(15, 16), max_denominator=16)


def async_world(**changes):
    setting = {"batch": 4, "depth": 12, "draw": exponential(1.0), "training_rate": 48.0}
    return World(**{**setting, **changes})


@given(st.integers(1, 8), POSITIVE, POSITIVE, POSITIVE, PHASES)
def test_boundary_step_time_solves_littles_law(batch, latency, rate, staleness, beta):
    """eq:app-boundary-little from the balance in its proof."""
    depth = theory_staleness.matched_boundary_depth(mean_staleness=staleness, batch=batch)
    setting = {"latency": latency, "batch": batch, "training_rate": rate, "completion_phase": beta}
    time = theory_times.boundary_step_time(**setting, depth=depth)

    assert depth == theory_times.boundary_depth_held(**setting, step_time=time)
    assert time == theory_times.boundary_step_time_at(**setting, mean_staleness=staleness)


def exact_ratio(pools, *, staleness, depth, beta):
    """T_c / T_b from the two theorems on step times."""
    boundary = theory_times.boundary_step_time(
        **pools,
        depth=theory_staleness.matched_boundary_depth(
            mean_staleness=staleness, batch=pools["batch"]
        ),
        completion_phase=beta,
    )
    continuous = theory_times.continuous_step_time(
        batch=pools["batch"], latency=pools["latency"], depth=depth
    )
    return continuous / boundary


POOLS = st.fixed_dictionaries(
    {"batch": st.integers(1, 8), "latency": POSITIVE, "training_rate": POSITIVE}
)


@given(POOLS, POSITIVE, PHASES, PHASES, st.fractions(0, 3))
def test_at_equal_interpolated_staleness_the_ratio_is_exact(pools, depth, alpha, beta, ready):
    """eq:app-phase-step-time-ratio."""
    staleness = theory_staleness.continuous_interpolated_staleness(
        depth=depth, ready=ready, batch=pools["batch"], admission_phase=alpha
    )
    assume(staleness + beta > 0)

    assert exact_ratio(
        pools, staleness=staleness, depth=depth, beta=beta
    ) == theory_times.time_ratio_at_equal_interpolated(
        **pools,
        mean_staleness=staleness,
        completion_phase=beta,
        admission_phase=alpha,
        ready=ready,
        depth=depth,
    )


@given(POOLS, POSITIVE, PHASES, st.fractions(0, 3))
def test_at_equal_discrete_staleness_the_ratio_is_exact(pools, depth, beta, ready):
    """eq:app-equal-discrete-time-ratio."""
    staleness = theory.continuous_staleness(depth=depth, ready=ready, batch=pools["batch"], steps=1)

    assert exact_ratio(
        pools, staleness=staleness, depth=depth, beta=beta
    ) == theory_times.time_ratio_at_equal_discrete(
        **pools, mean_staleness=staleness, completion_phase=beta, ready=ready, depth=depth
    )


@given(st.integers(1, 8), POSITIVE, POSITIVE, POSITIVE, PHASES, PHASES)
def test_with_the_estimated_ready_count_the_exact_forms_become_the_estimates(
    batch, latency, rate, staleness, alpha, beta
):
    """cor:app-matched-depths and cor:app-time-comparisons, by substitution."""
    depth = theory_times.matched_continuous_depth_estimate(
        mean_staleness=staleness,
        batch=batch,
        admission_phase=alpha,
        latency=latency,
        training_rate=rate,
    )
    ready = theory_times.ready_estimate(
        depth=depth, latency=latency, steps=1, batch=batch, training_rate=rate
    )
    pools = {"latency": latency, "batch": batch, "training_rate": rate}
    ratio = theory_times.time_ratio_at_equal_interpolated(
        mean_staleness=staleness,
        completion_phase=beta,
        admission_phase=alpha,
        ready=ready,
        depth=depth,
        **pools,
    )
    times = (
        theory_times.continuous_step_time_estimate(
            mean_staleness=staleness, admission_phase=alpha, **pools
        ),
        theory_times.boundary_step_time_at(
            mean_staleness=staleness, completion_phase=beta, **pools
        ),
    )

    assert depth == theory_staleness.matched_continuous_depth(
        mean_staleness=staleness, batch=batch, admission_phase=alpha, ready=ready
    )
    assert times[0] == theory_times.continuous_step_time(batch=batch, latency=latency, depth=depth)
    assert times[0] / times[1] == ratio
    assert ratio == theory_times.time_ratio_estimate_at_equal_interpolated(
        mean_staleness=staleness, completion_phase=beta, admission_phase=alpha
    )
    assert theory_times.time_ratio_estimate_at_equal_discrete(
        mean_staleness=staleness, completion_phase=beta
    ) == theory_times.time_ratio_estimate_at_equal_interpolated(
        mean_staleness=staleness, completion_phase=beta, admission_phase=0
    )
    assert staleness + alpha == theory_times.continuous_staleness_estimate(
        depth=depth, steps=1, **pools
    )


@given(POSITIVE, PHASES)
def test_equal_phases_give_equal_times_and_equal_discrete_staleness_never_gains(staleness, phase):
    """The remarks after cor:app-time-comparisons."""
    assert 1 == theory_times.time_ratio_estimate_at_equal_interpolated(
        mean_staleness=staleness, completion_phase=phase, admission_phase=phase
    )
    assert 1 <= theory_times.time_ratio_estimate_at_equal_discrete(
        mean_staleness=staleness, completion_phase=phase
    )


@pytest.mark.parametrize("draw", [exponential(1.0), log_normal(1.0), timed_out(1.0)])
def test_continuous_steps_take_what_flow_balance_says(draw):
    """thm:app-continuous-step-time: by the mean of the distribution, and closer by the latencies
    that a run drew."""
    world = async_world(draw=draw, is_continuous=True)
    found = repeated(world, lambda seen: seen.step_time(WARM_UP))
    gap = repeated(
        world,
        lambda seen: (
            seen.step_time(WARM_UP)
            - theory_times.continuous_step_time(batch=4, latency=seen.latency(WARM_UP), depth=12)
        ),
    )

    assert theory_times.is_supply_bound(depth=12, latency=1.0, training_rate=48.0)
    assert found.agrees(theory_times.continuous_step_time(batch=4, latency=1.0, depth=12))
    assert gap.agrees(0.0, slack=5e-4)


@pytest.mark.parametrize("draw", [exponential(1.0), log_normal(1.0), timed_out(1.0)])
@pytest.mark.parametrize("depth", [4, 7, 12])
def test_boundary_steps_take_what_their_completion_phase_says(draw, depth):
    """thm:app-boundary-step-time with L and beta as measured in the same run."""

    def gap(seen):
        return seen.step_time(WARM_UP) - theory_times.boundary_step_time(
            latency=seen.latency(WARM_UP),
            batch=4,
            training_rate=48.0,
            depth=depth,
            completion_phase=seen.completion_phase(WARM_UP),
        )

    assert repeated(async_world(draw=draw, depth=depth), gap).agrees(0.0, slack=1e-3)


def test_ready_groups_wait_as_long_as_the_completion_phase_says():
    """The wait in the proof of thm:app-boundary-step-time."""

    def gap(seen):
        waits = [seen.started_at[one.consumed_in] - one.finished_at for one in seen.after(WARM_UP)]
        return sum(waits) / len(waits) - theory_times.ready_wait(
            completion_phase=seen.completion_phase(WARM_UP), step_time=seen.step_time(WARM_UP)
        )

    assert repeated(async_world(), gap).agrees(0.0, slack=2e-3)


def test_the_ready_count_is_estimated_well_where_completions_have_no_memory():
    """cor:app-ready-estimates: with exponential durations the rate during training is the mean
    rate, and at a quarter of the trainer's speed hardly anything is left over."""
    world = async_world(is_continuous=True)
    setting = {"depth": 12, "latency": 1.0, "steps": 1, "batch": 4, "training_rate": 48.0}
    ready = repeated(world, lambda seen: seen.mean_ready(WARM_UP))
    staleness = repeated(world, lambda seen: seen.staleness(WARM_UP))

    assert ready.agrees(theory_times.ready_estimate(**setting), slack=0.03)
    assert staleness.agrees(theory_times.continuous_staleness_estimate(**setting), slack=0.01)


def test_a_common_deadline_breaks_the_estimate_of_the_ready_count():
    """ass:app-ready-rate: groups that end together leave a backlog that the estimate misses."""
    world = async_world(draw=lambda rng, unfinished: 1.0, is_continuous=True)
    setting = {"depth": 12, "latency": 1.0, "steps": 1, "batch": 4, "training_rate": 48.0}
    ready = repeated(world, lambda seen: seen.mean_ready(WARM_UP))
    staleness = repeated(world, lambda seen: seen.staleness(WARM_UP))

    assert ready.differs(theory_times.ready_estimate(**setting))
    assert staleness.agrees(
        theory.continuous_staleness(depth=12, ready=ready.mean, batch=4, steps=1), slack=0.02
    )


def test_a_trainer_that_is_too_slow_sets_the_pace_itself():
    """ass:app-timing: supply must be slower than training for thm:app-continuous-step-time."""
    world = async_world(training_rate=6.0, is_continuous=True)
    found = repeated(world, lambda seen: seen.step_time(WARM_UP), runs=6)

    assert not theory_times.is_supply_bound(depth=12, latency=1.0, training_rate=6.0)
    assert found.differs(theory_times.continuous_step_time(batch=4, latency=1.0, depth=12))
    assert found.agrees(theory_times.training_time(batch=4, training_rate=6.0), slack=1e-6)


def test_latency_that_grows_with_load_breaks_the_step_time():
    """ass:app-timing: what was measured at depth 6 says nothing of depth 12 then."""

    def world(depth):
        return async_world(
            depth=depth,
            draw=lambda rng, unfinished: rng.exponential(0.2 + 0.1 * unfinished),
            is_continuous=True,
        )

    latency = repeated(world(6), lambda seen: seen.latency(WARM_UP)).mean
    found = repeated(world(12), lambda seen: seen.step_time(WARM_UP))

    assert found.differs(theory_times.continuous_step_time(batch=4, latency=latency, depth=12))


def test_deeper_dispatch_buys_time_with_staleness():
    """Both theorems at once: measured ratios of two depths are as predicted from their phases."""

    def measured(depth):
        world = async_world(depth=depth, draw=log_normal(1.0))
        return (
            repeated(world, lambda seen: seen.step_time(WARM_UP)).mean,
            repeated(world, lambda seen: seen.completion_phase(WARM_UP)).mean,
        )

    (shallow, beta_shallow), (deep, beta_deep) = measured(6), measured(12)
    predicted = theory.over(
        theory_staleness.boundary_interpolated_staleness(depth=6, batch=4) + beta_shallow,
        theory_staleness.boundary_interpolated_staleness(depth=12, batch=4) + beta_deep,
    )

    assert deep < shallow
    assert deep / shallow == pytest.approx(predicted, rel=0.01)
