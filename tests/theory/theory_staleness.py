"""Staleness in closed form: what dispatch alone decides, with fractions where counts are whole.

Functions cite the labels of the paper's appendix on dispatch, with symbols spelled out as in
`gyre.simulator.theory`, which has the forms that the package itself evaluates; admission_phase is
alpha.
"""

from fractions import Fraction

from gyre.simulator.theory import Number, boundary_staleness, continuous_staleness, over


def staleness(*, trainer_version: int, published_version: int) -> int:
    """Of one group: v_t before its step, less v_d (eq:app-staleness-definition)."""
    return trainer_version - published_version


def boundary_depth(*, extra: Number, steps: int, batch: int) -> Number:
    """Unconsumed groups after each replenishment (eq:app-boundary-depth)."""
    return (extra + steps) * batch


def boundary_staleness_at_depth(*, depth: Number, batch: int, steps: int) -> Number:
    """Mean over groups (thm:app-boundary-staleness, eq:app-mean-scheduling-age, first form)."""
    return over(depth, batch) - Fraction(steps + 1, 2)


def colocate_staleness(*, steps: int) -> Number:
    """Without extra dispatch (cor:app-boundary-cases, eq:app-colocated-no-extra)."""
    return boundary_staleness(extra=0, steps=steps)


def async_staleness(*, depth: Number, batch: int) -> Number:
    """With one step per burst (cor:app-async-one-step, eq:app-async-one-step)."""
    return over(depth - batch, batch)


def boundary_age_added(*, depth: Number, batch: int, steps: int) -> Number:
    """Age that survivors gain in one burst (proof of thm:app-boundary-staleness)."""
    return steps * depth - Fraction(batch * steps * (steps + 1), 2)


def continuous_age_added(*, depth: Number, ready: Number, steps: int) -> Number:
    """Age by published versions that survivors gain at one publication
    (proof of thm:app-continuous-staleness)."""
    return steps * (depth + ready)


def consumed_staleness(*, age_added: Number, age_before: Number, age_after: Number) -> Number:
    """Total over any window, stationary or not: what was added and is no longer outstanding."""
    return age_added - (age_after - age_before)


def continuous_staleness_without_carryover(*, depth: Number, batch: int, steps: int) -> Number:
    """No group is ready at a publication, as in a Colocate that can pause its executions
    (cor:app-continuous-cases, eq:app-colocated-continuous)."""
    return continuous_staleness(depth=depth, ready=0, batch=batch, steps=steps)


def cost_of_equal_depth(*, ready: Number, batch: int) -> Number:
    """Staleness that continuous dispatch adds to boundary dispatch at the same depth, with one
    step per burst (cor:app-continuous-cases, eq:app-equal-depth-staleness-cost)."""
    return 1 + over(ready, batch)


def interpolated_staleness(*, staleness: Number, admission_phase: Number) -> Number:
    """Without the part of an interval between publications that had passed at admission
    (app:dispatch-metrics)."""
    return staleness - admission_phase


def boundary_interpolated_staleness(*, depth: Number, batch: int) -> Number:
    """Mean d with one step per burst (eq:app-phase-staleness-allowance, left)."""
    return over(depth, batch) - 1


def continuous_interpolated_staleness(
    *, depth: Number, ready: Number, batch: int, admission_phase: Number
) -> Number:
    """Mean d with one step per burst (eq:app-phase-staleness-allowance, right)."""
    return over(depth + ready, batch) - admission_phase


def matched_boundary_depth(*, mean_staleness: Number, batch: int) -> Number:
    """Q_b for a mean interpolated staleness (thm:app-matched-depths,
    eq:app-phase-depth-relation)."""
    return batch * (mean_staleness + 1)


def matched_continuous_depth(
    *, mean_staleness: Number, batch: int, admission_phase: Number, ready: Number
) -> Number:
    """Q_c for a mean interpolated staleness (thm:app-matched-depths,
    eq:app-phase-depth-relation)."""
    return batch * (mean_staleness + admission_phase) - ready


def continuous_depth_beside(
    *, boundary_depth: Number, batch: int, admission_phase: Number, ready: Number
) -> Number:
    """Q_c at the interpolated staleness of a boundary depth (proof of thm:app-matched-depths)."""
    return boundary_depth - (1 - admission_phase) * batch - ready
