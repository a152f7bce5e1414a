"""Facts of a run as numbers by step, for trackers."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from gyre.observability.history.steps import loss_totals, part_of
from gyre.types.run_events import (
    ClaimTrained,
    EvaluationRound,
    GroupPacked,
    RewardGiven,
    StepMade,
    TransitionTimed,
    WeightsPublished,
)


class MetricsSink(Protocol):
    """Takes the metrics of a step: a tracker, or a test's list."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...


class _NoTracker:
    def log(self, values: Mapping[str, float], *, step: int) -> None:
        pass


def next_step(facts: Iterable[tuple[float, Any]]) -> int:
    """The step that is logged next when these have been."""
    return max((fact.step + 2 for _, fact in facts if isinstance(fact, StepMade)), default=1)


class RunMetrics:
    """Collects what happens between two steps, and logs it with the step.

    Work that is done again, because what did it was lost, counts once.
    """

    def __init__(self, tracker: MetricsSink, *, before: Iterable[tuple[float, Any]] = ()) -> None:
        """`before` are facts with their times that were logged already."""
        self._tracker: MetricsSink = _NoTracker()
        self._step = 0
        self._stepped_s = 0.0
        self._claims: dict[int, ClaimTrained] = {}
        self._packed: dict[int, GroupPacked] = {}
        self._ran_s: list[float] = []
        for now, fact in before:
            self.record(now, fact)
        self._tracker = tracker

    def record(self, now: float, fact: Any) -> None:
        match fact:
            case ClaimTrained():
                self._claims[fact.claim] = fact
            case GroupPacked():
                self._packed[fact.group] = fact
            case RewardGiven(ran_s=float(ran_s)):
                self._ran_s.append(ran_s)
            case StepMade():
                self._step = fact.step + 1
                self._tracker.log(self._of_step(fact, now), step=self._step)
                self._claims.clear()
                self._packed.clear()
                self._ran_s.clear()
            case WeightsPublished():
                values = {
                    "publication/save_s": fact.save_s,
                    "publication/load_s": fact.load_s,
                    "publication/bytes": float(fact.num_bytes),
                }
                self._tracker.log(values, step=fact.version)
            case EvaluationRound():
                self._tracker.log(_of_round(fact), step=fact.version)
            case TransitionTimed(into_training=into, phases=phases):
                name = "into_training" if into else "home"
                values = {f"transition/{name}_s": sum(phases.values())}
                self._tracker.log(values, step=self._step)
            case _:
                pass

    def _of_step(self, fact: StepMade, now: float) -> dict[str, float]:
        loss = loss_totals([claim for claim in self._claims.values() if claim.step == fact.step])
        packed = [group for group in self._packed.values() if group.step == fact.step]
        found: dict[str, float | None] = {
            "reward": fact.reward,
            "loss": fact.loss,
            "gradient_norm": fact.gradient_norm,
            "clipped_step": float(fact.is_clipped),
            "step/seconds": now - self._stepped_s,
            "step/reduce_s": fact.reduce_s,
            "step/update_s": fact.step_s,
            "step/cells": float(len(fact.claims)),
            "step/tokens": float(sum(group.num_tokens for group in packed)),
            "step/targets": float(loss.num_targets),
            "objective/mean_ratio": loss.mean_ratio,
            "objective/capped": loss.capped,
            "objective/raised_clipped": loss.raised_clipped,
            "objective/lowered_clipped": loss.lowered_clipped,
            "objective/max_gap": loss.max_gap,
            "executions/mean_s": part_of(sum(self._ran_s), len(self._ran_s)),
        }
        self._stepped_s = now
        return {name: value for name, value in found.items() if value is not None}


def _of_round(fact: EvaluationRound) -> dict[str, float]:
    found = {
        "evaluation/score": fact.mean,
        "evaluation/standard_error": fact.standard_error,
        "evaluation/valid": part_of(fact.num_valid, fact.num_tasks),
    }
    return {name: value for name, value in found.items() if value is not None}
