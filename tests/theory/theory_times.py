"""Step times in closed form, for fixed pools that train and roll out beside each other.

Functions cite the labels of the paper's appendix on dispatch. Its symbols are spelled out as in
`theory`; latency is L, training_rate v_T, completion_phase beta, mean_staleness d. All of it
supposes that a group starts when it is admitted, that durations are independent of depth and of
each other, that a burst's groups are reserved before it begins, that training has one speed, and
that its supply is slower (ass:app-timing). What is called an estimate also supposes that groups
become ready during training as at any other time, and that none are left over
(ass:app-ready-rate).
"""

from gyre.simulator.theory import Number, continuous_staleness, over


def ready_rate(*, depth: Number, latency: Number) -> Number:
    """Groups that become ready per unit of time under continuous dispatch, by Little's law
    (app:dispatch-ready-rate)."""
    return over(depth, latency)


def is_supply_bound(*, depth: Number, latency: Number, training_rate: Number) -> bool:
    """Whether training waits for data in the long run (ass:app-timing)."""
    return ready_rate(depth=depth, latency=latency) < training_rate


def training_time(*, batch: int, training_rate: Number, steps: int = 1) -> Number:
    """Of one burst."""
    return over(steps * batch, training_rate)


def ready_estimate(
    *, depth: Number, latency: Number, steps: int, batch: int, training_rate: Number
) -> Number:
    """R (cor:app-ready-estimates, eq:app-ready-rate-estimate)."""
    burst = training_time(batch=batch, training_rate=training_rate, steps=steps)
    return ready_rate(depth=depth, latency=latency) * burst


def continuous_staleness_estimate(
    *, depth: Number, latency: Number, steps: int, batch: int, training_rate: Number
) -> Number:
    """Mean over groups (cor:app-ready-estimates, eq:app-async-continuous)."""
    ready = ready_estimate(
        depth=depth, latency=latency, steps=steps, batch=batch, training_rate=training_rate
    )
    return continuous_staleness(depth=depth, ready=ready, batch=batch, steps=steps)


def continuous_step_time(*, batch: int, latency: Number, depth: Number) -> Number:
    """T_c with one step per burst (thm:app-continuous-step-time,
    eq:app-continuous-throughput)."""
    return over(batch * latency, depth)


def boundary_step_time(
    *, latency: Number, batch: int, training_rate: Number, depth: Number, completion_phase: Number
) -> Number:
    """T_b with one step per burst (thm:app-boundary-step-time, eq:app-boundary-little)."""
    held = latency + training_time(batch=batch, training_rate=training_rate)
    return over(held, over(depth, batch) - 1 + completion_phase)


def ready_wait(*, completion_phase: Number, step_time: Number) -> Number:
    """How long a group is ready before its training begins, under boundary dispatch
    (proof of thm:app-boundary-step-time)."""
    return (1 - completion_phase) * step_time


def boundary_depth_held(
    *,
    latency: Number,
    batch: int,
    training_rate: Number,
    completion_phase: Number,
    step_time: Number,
) -> Number:
    """Q_b by Little's law: arrivals times how long each holds its slot
    (proof of thm:app-boundary-step-time)."""
    wait = ready_wait(completion_phase=completion_phase, step_time=step_time)
    held = latency + wait + training_time(batch=batch, training_rate=training_rate)
    return over(batch, step_time) * held


def matched_continuous_depth_estimate(
    *,
    mean_staleness: Number,
    batch: int,
    admission_phase: Number,
    latency: Number,
    training_rate: Number,
) -> Number:
    """Q_c for a mean interpolated staleness (cor:app-matched-depths,
    eq:app-phase-depth-approx)."""
    share = over(batch, latency * training_rate)
    return over(batch * (mean_staleness + admission_phase), 1 + share)


def time_ratio_at_equal_interpolated(
    *,
    mean_staleness: Number,
    completion_phase: Number,
    admission_phase: Number,
    ready: Number,
    batch: int,
    depth: Number,
    latency: Number,
    training_rate: Number,
) -> Number:
    """T_c / T_b; `depth` is Q_c (thm:app-time-comparisons, eq:app-phase-step-time-ratio)."""
    share = over(depth, latency * training_rate)
    below = mean_staleness + admission_phase - over(ready, batch) + share
    return over(mean_staleness + completion_phase, below)


def time_ratio_at_equal_discrete(
    *,
    mean_staleness: Number,
    completion_phase: Number,
    ready: Number,
    batch: int,
    depth: Number,
    latency: Number,
    training_rate: Number,
) -> Number:
    """T_c / T_b; `depth` is Q_c, staleness above 0 (thm:app-time-comparisons,
    eq:app-equal-discrete-time-ratio)."""
    return time_ratio_at_equal_interpolated(
        mean_staleness=mean_staleness,
        completion_phase=completion_phase,
        admission_phase=0,
        ready=ready,
        batch=batch,
        depth=depth,
        latency=latency,
        training_rate=training_rate,
    )


def boundary_step_time_at(
    *,
    mean_staleness: Number,
    completion_phase: Number,
    latency: Number,
    batch: int,
    training_rate: Number,
) -> Number:
    """T_b by staleness in place of depth (proof of cor:app-time-comparisons)."""
    held = latency + training_time(batch=batch, training_rate=training_rate)
    return over(held, mean_staleness + completion_phase)


def continuous_step_time_estimate(
    *,
    mean_staleness: Number,
    admission_phase: Number,
    latency: Number,
    batch: int,
    training_rate: Number,
) -> Number:
    """T_c at an interpolated staleness; with phase 0, at a discrete one
    (proof of cor:app-time-comparisons)."""
    held = latency + training_time(batch=batch, training_rate=training_rate)
    return over(held, mean_staleness + admission_phase)


def time_ratio_estimate_at_equal_interpolated(
    *, mean_staleness: Number, completion_phase: Number, admission_phase: Number
) -> Number:
    """T_c / T_b (cor:app-time-comparisons, eq:app-phase-step-time-approx)."""
    return over(mean_staleness + completion_phase, mean_staleness + admission_phase)


def time_ratio_estimate_at_equal_discrete(
    *, mean_staleness: Number, completion_phase: Number
) -> Number:
    """T_c / T_b, staleness above 0 (cor:app-time-comparisons)."""
    return 1 + over(completion_phase, mean_staleness)
