"""The simulator beside live runs on a GPU: calibrated on one of them, it foretells the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.gpu.live import runs, work
from benchmarks.gpu.live.runs import Size
from benchmarks.gpu.live.work import Execution, Scale
from benchmarks.live.running import Ran

from gyre.scheduler.messages import StepTaken
from gyre.scheduler.replay import EVENTS, shape_of
from gyre.simulator.from_journal import RecordedExecution as Timed
from gyre.simulator.from_journal import recorded, times
from gyre.simulator.scenario import Scenario, scenario_of
from gyre.simulator.workload import HOUR_S
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import ClaimTrained, GroupPacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the simulator takes over from another run."""

    costs: Mapping[str, float]
    per_execution_s: float
    """Of an execution, beside its tools, its calls, and what its assessment is meant to take."""
    per_token_s: float
    """Of every token that is sampled for it, and its part of a call; calls are about as long as
    each other, so that what tokens take and what calls take cannot be told apart."""

    def seconds(self, one: Execution) -> float:
        """From the launch of an execution to its end."""
        return self.per_execution_s + one.tool_s + self.per_token_s * one.num_tokens


def calibrated(ran: Ran, scale: Scale, *, seed: int) -> Calibration:
    """Costs as the journal has them, and what tokens of whole executions take."""
    header = ran.reading.header
    assert header is not None
    shape = shape_of(header.shape)
    found = times(shape, ran.reading.facts(EVENTS))
    members = shape.executions_per_group
    groups = work.work(scale, groups=len(found.executions), members=members, seed=seed)
    rows, spent = [], []
    for group, ended in zip(groups, found.executions.values(), strict=True):
        for told, one in zip(group, ended, strict=True):
            if one.ran_s is not None and one.evaluation_s is not None and _is_whole(one):
                rows.append((1.0, told.num_tokens))
                held_s = one.ran_s + one.evaluation_s
                spent.append(held_s - told.tool_s - told.evaluation_s)
    (execution_s, token_s), *_ = np.linalg.lstsq(np.array(rows), np.array(spent), rcond=None)
    return Calibration(
        costs={**recorded(ran.reading).tables["costs"], **_training(ran)},
        per_execution_s=float(execution_s),
        per_token_s=float(token_s),
    )


def _training(ran: Ran) -> dict[str, float]:
    """What claims took, and what came between the last of a step and the step itself.

    Cells say it themselves, where the simulator goes by groups that wait, of which there are few.
    """
    claims_s, ended, updates_s = 0.0, 0.0, []
    for now, fact in ran.reading.facts((ClaimTrained, StepTaken)):
        if isinstance(fact, ClaimTrained):
            claims_s += fact.seconds
            ended = now
        else:
            updates_s.append(now - ended)
    groups = sum(1 for _ in ran.reading.facts((GroupPacked,)))
    if not groups:
        return {}
    return {"groups_per_node_hour": HOUR_S * groups / claims_s, "update_s": fmean(updates_s)}


def _is_whole(one: Timed) -> bool:
    """Whether nothing cut it short, nor its assessment."""
    return one.ending is Ending.COMPLETED and one.outcome is Outcome.VALID


def foretold(
    found: Calibration,
    scale: Scale,
    *,
    schedule: Mapping[str, Any],
    cells: Mapping[str, Any],
    seed: int,
) -> Scenario:
    """A run of this seed as the simulator is to meet it."""
    members = schedule["executions_per_group"]
    groups = work.work(scale, groups=runs.groups_of(schedule), members=members, seed=seed)
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


def variants(size: Size, *, steps: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every schedule that is simulated, with its cells; those that run live are among them."""
    placements = [name for name, one in runs.SCHEDULES.items() if name == one["placement"]]
    for name in placements:
        splits = range(1, runs.CELLS) if runs.has_split(name) else (runs.CELLS,)
        for streaming in (False, True):
            schedule = {**runs.schedule_of(name, size, steps=steps), "streaming": streaming}
            for training in splits:
                split = f", {training} train" if runs.has_split(name) else ""
                streams = ", streaming" if streaming else ", whole bursts"
                cells = runs.cells_of(name, size, training=training)
                yield f"{name}{split}{streams}", schedule, cells
