"""The simulator beside live runs on a GPU: calibrated on one of them, it foretells the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu.live import runs, work
from benchmarks.gpu.live.work import Execution, Scale
from benchmarks.live.running import Ran

from gyre.plan.replay import EVENTS, shape_of
from gyre.sim.durations import HOUR_S
from gyre.sim.recorded import recorded
from gyre.sim.recorded_times import times
from gyre.sim.scenario import Scenario
from gyre.sim.scenario_tables import scenario_of
from gyre.words.outcomes import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the simulator takes over from another run."""

    costs: Mapping[str, float]
    per_execution_s: float
    """Of an execution, beside its tools and its calls."""
    per_call_s: float
    per_token_s: float
    """Of every token that is sampled for it."""

    def seconds(self, one: Execution) -> float:
        """From the launch of an execution to its end."""
        calls_s = self.per_call_s * len(one.turns) + self.per_token_s * one.num_tokens
        return self.per_execution_s + one.tool_s + calls_s


def calibrated(ran: Ran, scale: Scale, *, seed: int) -> Calibration:
    """Costs as the journal has them, and what tokens and calls of whole executions take."""
    header = ran.reading.header
    assert header is not None
    found = times(shape_of(header.shape), ran.reading.facts(EVENTS))
    groups = work.work(scale, groups=len(found.executions), members=runs.GROUP, seed=seed)
    rows, spent = [], []
    for group, members in zip(groups, found.executions.values(), strict=True):
        for told, one in zip(group, members, strict=True):
            if one.ran_s is not None and one.ending is Ending.COMPLETED:
                rows.append((1.0, float(len(told.turns)), told.num_tokens))
                spent.append(one.ran_s - told.tool_s)
    (execution_s, call_s, token_s), *_ = np.linalg.lstsq(
        np.array(rows), np.array(spent), rcond=None
    )
    return Calibration(
        costs=recorded(ran.reading).tables["costs"],
        per_execution_s=float(execution_s),
        per_call_s=float(call_s),
        per_token_s=float(token_s),
    )


def foretold(
    found: Calibration,
    scale: Scale,
    *,
    schedule: Mapping[str, Any],
    cells: Mapping[str, Any],
    seed: int,
) -> Scenario:
    """A run of this seed as the simulator is to meet it."""
    groups = work.work(scale, groups=runs.GROUPS, members=runs.GROUP, seed=seed)
    hours = [[found.seconds(one) / HOUR_S for one in group] for group in groups]
    deadlines = {"harness_h": scale.agent_s / HOUR_S, "overall_h": scale.overall_s / HOUR_S}
    return scenario_of(
        {
            "name": "foretold",
            "seed": seed,
            "schedule": dict(schedule),
            "cells": {"nodes": 1, **cells},
            "work": {"recorded_h": hours},
            "deadlines": deadlines,
            "evaluations": scale.evaluations,
            "costs": dict(found.costs),
        }
    )


def variants(*, steps: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every schedule that is simulated, with its cells; those that run live are among them."""
    for name in runs.SCHEDULES:
        splits = range(1, runs.CELLS) if name == "async" else (runs.CELLS,)
        for streaming in (False, True):
            schedule = {**runs.schedule_of(name, steps=steps), "streaming": streaming}
            for training in splits:
                split = f", {training} train" if name == "async" else ""
                streams = ", streaming" if streaming else ", whole bursts"
                yield f"{name}{split}{streams}", schedule, runs.cells_of(name, training=training)
