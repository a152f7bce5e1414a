"""Facts become numbers by step."""

from tests.observability.support.journals import NOTHING

from gyre.observability.metrics import RunMetrics, next_step
from gyre.types.run_events import (
    ClaimTrained,
    GroupPacked,
    RewardGiven,
    StepMade,
    TransitionTimed,
    WeightsPublished,
)
from gyre.types.training import Measures


class Logged:
    def __init__(self):
        self.logs = []

    def log(self, values, *, step):
        self.logs.append((step, dict(values)))


def claim(**changed):
    measures = Measures(
        num_targets=10,
        num_capped=1,
        num_raised=4,
        num_raised_clipped=2,
        num_lowered=6,
        num_lowered_clipped=3,
        sum_ratio=11.0,
        max_gap=0.25,
    )
    fields = {
        "step": 0, "claim": 0, "cell": 1, "num_executions": 2, "num_tokens": 50,
        "loss": 0.1, "seconds": 1.0, "measures": measures,
    }  # fmt: skip
    return ClaimTrained(**fields | changed)


def step(number=0, reward=0.5):
    return StepMade(
        step=number,
        loss=0.2,
        reward=reward,
        gradient_norm=3.0,
        is_clipped=True,
        claims={0: 2, 1: 1},
        reduce_s=0.1,
        step_s=0.2,
        reduced_bytes=8,
    )


PACKED = GroupPacked(
    group=0, step=0, num_claims=1, num_trajectories=2, num_tokens=70, num_targets=20, row_tokens=90
)
REWARD = RewardGiven(group=0, member=0, execution="x", score=0.5, ran_s=4.0)


def test_a_step_has_what_happened_since_the_one_before():
    found = Logged()
    metrics = RunMetrics(found)
    facts = (PACKED, claim(), REWARD, claim(claim=1), step(), step(1, reward=None))
    for now, fact in enumerate(facts):
        metrics.record(float(now), fact)

    (first, values), (second, after) = found.logs
    assert (1, 2) == (first, second)
    assert (0.5, 0.2, 3.0, 1.0) == tuple(
        values[name] for name in ("reward", "loss", "gradient_norm", "clipped_step")
    )
    assert (4.0, 70.0, 20.0, 2.0) == tuple(
        values[f"step/{name}"] for name in ("seconds", "tokens", "targets", "cells")
    )
    assert (1.1, 0.1, 0.5, 0.5, 0.25) == tuple(
        values[f"objective/{name}"]
        for name in ("mean_ratio", "capped", "raised_clipped", "lowered_clipped", "max_gap")
    )
    assert 4.0 == values["executions/mean_s"]
    assert 1.0 == after["step/seconds"]


def test_a_resumed_run_logs_what_is_new_and_its_work_once():
    """A step that was cut off before it was taken is made again, with all its claims."""
    found = Logged()
    cut_off = [(1.0, PACKED), (2.0, claim()), (3.0, step()), (5.0, claim())]
    metrics = RunMetrics(found, before=cut_off)
    for now, fact in ((6.0, PACKED), (7.0, claim()), (9.0, step())):
        metrics.record(now, fact)

    ((number, values),) = found.logs
    assert (1, 6.0, 70.0, 10.0) == (
        number,
        *(values[f"step/{name}"] for name in ("seconds", "tokens", "targets")),
    )


def test_what_is_not_known_is_not_logged():
    """A missing reward is not 0, nor is the gap of a claim without targets."""
    found = Logged()
    metrics = RunMetrics(found)
    metrics.record(0.5, claim(measures=NOTHING))
    metrics.record(1.0, step(reward=None))
    absent = {"reward", "objective/mean_ratio", "objective/max_gap", "executions/mean_s"}

    assert absent.isdisjoint(found.logs[0][1])


def test_publications_and_transitions_have_their_times():
    found = Logged()
    metrics = RunMetrics(found)
    metrics.record(0.0, step(3))
    metrics.record(
        1.0, WeightsPublished(version=4, digest="d", save_s=0.5, load_s=0.25, num_bytes=64)
    )
    for into in (True, False):
        metrics.record(
            2.0,
            TransitionTimed(cell=1, transition=2, into_training=into, phases={"a": 0.5, "b": 1.5}),
        )

    assert [
        (4, {"publication/save_s": 0.5, "publication/load_s": 0.25, "publication/bytes": 64.0}),
        (4, {"transition/into_training_s": 2.0}),
        (4, {"transition/home_s": 2.0}),
    ] == found.logs[1:]


def test_the_step_that_comes_next_is_the_one_after_all_that_were_logged():
    found = Logged()
    facts = [(0.0, PACKED), (1.0, step()), (2.0, step(1)), (3.0, REWARD)]
    RunMetrics(found, before=facts).record(4.0, step(2))

    assert [next_step(facts)] == [number for number, _ in found.logs]
    assert 1 == next_step([(0.0, PACKED)])
