"""The counting identities: exact in any window, in the mean of long runs, and where they end."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory import theory_staleness
from tests.theory.worlds import (
    World,
    at_random,
    exponential,
    log_normal,
    oldest_first,
    repeated,
    timed_out,
    youngest_first,
)

from gyre.simulator import theory

WARM_UP = 60

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 12)).map(
    lambda shape: (shape[0], shape[1], Fraction(shape[2], shape[0]))
)
"""(batch, steps, extra) with extra * batch whole."""


class Counting:
    """Boundary dispatch without time: any of the outstanding groups may be consumed next."""

    def __init__(self, batch, steps, extra):
        self.batch, self.steps = batch, steps
        self.version = self.published = 0
        self.outstanding = [0] * int((extra + steps) * batch)
        """The version of each."""
        self.consumed, self.survivors = [], 0

    def burst(self, choose):
        for _ in range(self.steps):
            for _ in range(self.batch):
                version = self.outstanding.pop(choose(len(self.outstanding)))
                self.consumed.append(
                    theory_staleness.staleness(
                        trainer_version=self.version, published_version=version
                    )
                )
            self.version += 1
            self.survivors += len(self.outstanding)
        self.published = self.version
        self.outstanding += [self.published] * (self.batch * self.steps)

    @property
    def age(self):
        return sum(self.version - version for version in self.outstanding)


@given(SHAPES, st.integers(1, 6), st.data())
def test_in_any_window_and_any_order_consumed_staleness_is_age_added_less_age_kept(
    shape, bursts, data
):
    """In integers; the proof of thm:app-boundary-staleness before stationarity is used."""
    batch, steps, extra = shape
    world = Counting(*shape)
    for _ in range(bursts):
        world.burst(lambda count: data.draw(st.integers(0, count - 1)))
    depth = theory_staleness.boundary_depth(extra=extra, steps=steps, batch=batch)
    added = bursts * theory_staleness.boundary_age_added(depth=depth, batch=batch, steps=steps)

    assert added == world.survivors
    assert sum(world.consumed) == theory_staleness.consumed_staleness(
        age_added=added, age_before=0, age_after=world.age
    )


@given(SHAPES)
def test_oldest_first_has_the_predicted_mean_exactly(shape):
    """Once a period is stationary the mean needs no limit."""
    _, steps, extra = shape
    world = Counting(*shape)
    for _ in range(40):
        world.burst(lambda count: 0)
    world.consumed.clear()
    age = world.age
    # After as many bursts as groups pass through the queue, outstanding ages repeat.
    for _ in range(60):
        world.burst(lambda count: 0)

    mean = Fraction(sum(world.consumed), len(world.consumed))
    assert world.age == age
    assert mean == theory.boundary_staleness(extra=extra, steps=steps)


@given(SHAPES)
def test_the_forms_of_the_boundary_theorem_agree(shape):
    """eq:app-mean-scheduling-age, with cor:app-boundary-cases and cor:app-async-one-step."""
    batch, steps, extra = shape
    depth = theory_staleness.boundary_depth(extra=extra, steps=steps, batch=batch)
    mean = theory.boundary_staleness(extra=extra, steps=steps)

    assert mean == theory_staleness.boundary_staleness_at_depth(
        depth=depth, batch=batch, steps=steps
    )
    assert mean * steps * batch == theory_staleness.boundary_age_added(
        depth=depth, batch=batch, steps=steps
    )
    if extra == 0:
        assert mean == theory_staleness.colocate_staleness(steps=steps) == Fraction(steps - 1, 2)
    if steps == 1:
        assert mean == theory_staleness.async_staleness(depth=depth, batch=batch) == extra


def test_one_step_without_extra_dispatch_has_no_staleness_whatever_time_passes():
    world = World(batch=3, depth=3, draw=exponential(100.0), training_rate=1.0)

    assert {0} == {one.staleness for one in world.run(30, seed=0).consumed}


@given(SHAPES, st.fractions(0, 20))
def test_the_forms_of_the_continuous_theorem_agree(shape, ready):
    """eq:app-continuous-exact, with cor:app-continuous-cases."""
    batch, steps, extra = shape
    depth = theory_staleness.boundary_depth(extra=extra, steps=steps, batch=batch)
    mean = theory.continuous_staleness(depth=depth, ready=ready, batch=batch, steps=steps)
    added = theory_staleness.continuous_age_added(depth=depth, ready=ready, steps=steps)

    assert mean * steps * batch == added + Fraction(batch * steps * (steps - 1), 2)
    assert mean - Fraction(ready, batch) == theory_staleness.continuous_staleness_without_carryover(
        depth=depth, batch=batch, steps=steps
    )
    if steps == 1:
        boundary = theory.boundary_staleness(extra=extra, steps=1)
        assert mean - boundary == theory_staleness.cost_of_equal_depth(ready=ready, batch=batch)


@pytest.mark.parametrize(
    ("extra", "steps", "expected"),
    [(1.5, 1, 1.5), (0, 4, 1.5), (0.5, 3, 1.5), (1, 1, 1), (0, 3, 1), (0.5, 2, 1)],
)
def test_published_settings_have_the_published_staleness(extra, steps, expected):
    """The (phi, mu) of tab:ablation-scheduling and tab:swe-tb."""
    assert expected == theory.boundary_staleness(extra=extra, steps=steps)
    found = theory.dispatch_settings(mean_staleness=Fraction(expected), batch=32)
    assert (Fraction(extra), steps) in set(found)


@given(st.fractions(0, 6, max_denominator=8), st.integers(1, 12))
def test_settings_for_a_staleness_are_all_there_are(target, batch):
    found = set(theory.dispatch_settings(mean_staleness=target, batch=batch))
    tried = {
        (Fraction(places, batch), steps)
        for places in range(6 * batch + 1)
        for steps in range(1, 15)
        if theory.boundary_staleness(extra=Fraction(places, batch), steps=steps) == target
    }

    assert tried == found


@pytest.mark.parametrize("choose", [oldest_first, at_random])
@pytest.mark.parametrize("draw", [exponential(1.0), timed_out(1.0)])
def test_boundary_staleness_needs_no_order_and_no_distribution(choose, draw):
    """thm:app-boundary-staleness, four standard errors of 12 runs; at this speed of training more
    groups are often ready than a burst takes, so that the choice matters."""
    world = World(batch=3, depth=15, draw=draw, training_rate=4.0, steps=2, choose=choose)
    found = repeated(world, lambda seen: seen.staleness(WARM_UP))

    assert found.agrees(
        theory_staleness.boundary_staleness_at_depth(depth=15, batch=3, steps=2), slack=1e-3
    )


def test_youngest_first_under_a_common_deadline_starves_groups_and_breaks_the_identity():
    """ass:app-accounting, in time: every burst finds enough young groups ready, so that the extra
    ones are never consumed; that their number is bounded does not help."""
    world = World(
        batch=3, depth=15, draw=timed_out(1.0), training_rate=4.0, steps=2, choose=youngest_first
    )
    seen = world.run(200, seed=0)

    assert 2.5 == seen.staleness(WARM_UP)
    assert 3.5 == theory_staleness.boundary_staleness_at_depth(depth=15, batch=3, steps=2)
    assert seen.ages[-1] > seen.ages[100] + 100


@pytest.mark.parametrize("choose", [oldest_first, at_random])
@pytest.mark.parametrize("draw", [exponential(1.0), timed_out(1.0)])
def test_continuous_staleness_follows_from_the_ready_groups_seen(choose, draw):
    """thm:app-continuous-staleness with R as measured in the same run."""
    world = World(
        batch=3, depth=9, draw=draw, training_rate=12.0, steps=2, is_continuous=True, choose=choose
    )

    def gap(seen):
        ready = seen.mean_ready(WARM_UP)
        predicted = theory.continuous_staleness(depth=9, ready=ready, batch=3, steps=2)
        return seen.staleness(WARM_UP) - float(predicted)

    assert repeated(world, gap).agrees(0.0, slack=1e-2)


def test_at_equal_depth_continuous_dispatch_is_staler_by_a_step_and_more():
    """eq:app-equal-depth-staleness-cost."""
    setting = {"batch": 3, "depth": 9, "draw": log_normal(1.0), "training_rate": 20.0}
    boundary = repeated(World(**setting), lambda seen: seen.staleness(WARM_UP))
    continuous = World(**setting, is_continuous=True)
    gap = repeated(
        continuous,
        lambda seen: (
            seen.staleness(WARM_UP)
            - boundary.mean
            - theory_staleness.cost_of_equal_depth(ready=seen.mean_ready(WARM_UP), batch=3)
        ),
    )

    assert gap.agrees(0.0, slack=1e-2 + 4 * boundary.error)


def test_groups_that_are_never_consumed_break_the_identity():
    """ass:app-accounting: starved groups age without end, and the consumed ones never wait."""
    batch, steps, extra = 2, 3, Fraction(1)
    world = Counting(batch, steps, extra)
    for _ in range(50):
        world.burst(lambda count: count - 1)

    mean = Fraction(sum(world.consumed), len(world.consumed))
    assert mean == theory_staleness.colocate_staleness(steps=steps)
    assert mean < theory.boundary_staleness(extra=extra, steps=steps)
    assert world.age >= extra * batch * steps * 49


def test_groups_that_are_dropped_for_age_break_the_identity():
    """ass:app-accounting: drops need an accounting of their own."""
    setting = {"batch": 3, "depth": 12, "draw": exponential(1.0), "training_rate": 20.0}
    kept = repeated(World(**setting), lambda seen: seen.staleness(WARM_UP))
    dropped = repeated(World(**setting, drop_older_than=3), lambda seen: seen.staleness(WARM_UP))
    predicted = theory_staleness.boundary_staleness_at_depth(depth=12, batch=3, steps=1)

    assert kept.agrees(predicted, slack=1e-3)
    assert dropped.differs(predicted)


def test_ready_groups_are_counted_at_publications_and_not_over_time():
    """thm:app-continuous-staleness: half of the batch waits for the other half most of the time."""
    world = World(batch=6, depth=6, draw=exponential(1.0), training_rate=1000.0, is_continuous=True)

    def over_time(seen):
        waits = [seen.started_at[one.consumed_in] - one.finished_at for one in seen.after(WARM_UP)]
        return sum(waits) / (seen.published_at[-1] - seen.published_at[WARM_UP])

    wrong = repeated(
        world,
        lambda seen: (
            float(theory.continuous_staleness(depth=6, ready=over_time(seen), batch=6, steps=1))
            - seen.staleness(WARM_UP)
        ),
    )

    assert wrong.differs(0.0)


def test_interpolated_staleness_leaves_out_what_had_passed():
    """fig:version-difference-metrics: admitted halfway between 0 and 1, consumed at 3."""
    discrete = theory_staleness.staleness(trainer_version=3, published_version=0)

    assert 2.5 == theory_staleness.interpolated_staleness(staleness=discrete, admission_phase=0.5)


def test_the_worlds_dispatch_as_the_figure_shows():
    """fig:dispatch-policies: B = 2, depth 3, G1 and G2 ready at 2 and 4, trained from 4 to 6."""
    for is_continuous, expected in [(False, [(6, 1), (6, 1)]), (True, [(2, 0), (4, 0)])]:
        durations = iter([2.0, 4.0] + [9.0] * 20)
        world = World(
            batch=2,
            depth=3,
            draw=lambda rng, unfinished, left=durations: next(left),
            training_rate=1.0,
            is_continuous=is_continuous,
        )
        seen = world.run(1, seed=0)

        assert [0.0, 6.0] == seen.published_at
        assert expected == [(one.admitted_at, one.version) for one in seen.admitted[3:]]


@given(st.integers(1, 9), st.fractions(0, 9), st.fractions(0, 1), st.fractions(0, 3))
def test_matched_depths_meet_the_staleness_they_are_for(batch, mean, phase, ready):
    """thm:app-matched-depths is eq:app-phase-staleness-allowance solved for the depths."""
    boundary = theory_staleness.matched_boundary_depth(mean_staleness=mean, batch=batch)
    continuous = theory_staleness.matched_continuous_depth(
        mean_staleness=mean, batch=batch, admission_phase=phase, ready=ready
    )

    assert mean == theory_staleness.boundary_interpolated_staleness(depth=boundary, batch=batch)
    assert mean == theory_staleness.continuous_interpolated_staleness(
        depth=continuous, ready=ready, batch=batch, admission_phase=phase
    )
    assert continuous == theory_staleness.continuous_depth_beside(
        boundary_depth=boundary, batch=batch, admission_phase=phase, ready=ready
    )


def test_interpolated_staleness_of_a_run_is_what_its_depth_and_phase_say():
    """eq:app-phase-staleness-allowance with alpha and R as measured; alpha is not one half."""
    world = World(batch=3, depth=9, draw=timed_out(1.0), training_rate=20.0, is_continuous=True)

    def gap(seen):
        # Alpha of the consumed groups, so that both sides speak of the same ones.
        phases = [seen.phase(one) for one in seen.after(WARM_UP)]
        alpha = sum(phases) / len(phases)
        found = theory_staleness.interpolated_staleness(
            staleness=seen.staleness(WARM_UP), admission_phase=alpha
        )
        return found - theory_staleness.continuous_interpolated_staleness(
            depth=9, ready=seen.mean_ready(WARM_UP), batch=3, admission_phase=alpha
        )

    assert repeated(world, gap).agrees(0.0, slack=1e-2)
    assert repeated(world, lambda seen: seen.admission_phase(WARM_UP)).differs(0.5)
