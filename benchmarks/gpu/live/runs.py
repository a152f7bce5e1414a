"""A live run on a GPU under one placement: its tables, and what its journal says afterwards."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.gpu.live import work
from benchmarks.gpu.live.work import Scale
from benchmarks.live.running import Ran, trained

CELLS = 4
CLAIM_PACKS = 1
"""Cells take work in small pieces, so that none waits long for the last piece of a step."""
STEPS = 6
STALENESS = 1.0
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "elastic": {"placement": "elastic", "extra_dispatch": 0.5, "steps_per_burst": 2},
    "async": {
        "placement": "async",
        "streaming": False,
        "extra_dispatch": 1.0,
        "steps_per_burst": 1,
    },
    "colocate": {
        "placement": "colocate",
        "streaming": False,
        "extra_dispatch": 0.0,
        "steps_per_burst": 3,
    },
    "async-streaming": {"placement": "async", "extra_dispatch": 1.0, "steps_per_burst": 1},
}
"""The paper's, at a mean staleness of 1, and behind them async that trains groups as they come."""
COMMON = {
    "supply_dwell_s": 0.3,
    "evaluation_holds_slot": True,
    "endless_dispatch": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many executions there are at once, and how many are trained together."""

    batch: int
    """Groups."""
    group: int
    capacity: int
    """Seats of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run is told of where it runs."""

    model: Path
    device: str
    transport: str
    kv_s: float
    """How long calls that move may wait for their keys and values."""
    kv_tokens: int
    pack_tokens: int
    shards: int
    """Processes of its proxy."""


def has_split(name: str) -> bool:
    """Whether some cells always train, and the others always serve."""
    return bool(SCHEDULES[name]["placement"] == "async")


def cells_of(name: str, size: Size, *, training: int) -> dict[str, Any]:
    """Four cells' worth; under async so many train, and the others only serve."""
    if not has_split(name):
        return {"count": CELLS, "capacity": size.capacity}
    standalone = [size.capacity] * (CELLS - training)
    return {"count": training, "capacity": size.capacity, "standalone": standalone}


def schedule_of(name: str, size: Size, *, steps: int) -> dict[str, Any]:
    sizes = {"groups_per_batch": size.batch, "executions_per_group": size.group}
    return {**COMMON, **sizes, **SCHEDULES[name], "steps": steps}


def groups_of(schedule: Mapping[str, Any]) -> int:
    """More than any placement admits under such a schedule."""
    most = max(1 + one["extra_dispatch"] + one["steps_per_burst"] for one in SCHEDULES.values())
    return int(schedule["groups_per_batch"] * (schedule["steps"] + most))


def live(
    folder: Path,
    name: str,
    machine: Machine,
    size: Size,
    scale: Scale,
    *,
    seed: int,
    steps: int,
    training: int,
    within_s: float,
    spied: Path | None = None,
) -> Ran:
    """One run in a folder of its own, of which no process is left.

    Cells write what their threads are at into the folder `spied`, if there is one.

    Raises CalledProcessError if it does not end well in time.
    """
    # What an earlier one left that did not.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    schedule = schedule_of(name, size, steps=steps)
    options = urlencode({"seed": seed} if spied is None else {"seed": seed, "spied": spied})
    groups = work.work(scale, groups=groups_of(schedule), members=size.group, seed=seed)
    tasks = work.write_tasks(folder / "tasks.jsonl", groups, seed=seed)
    return trained(
        folder,
        {
            "run": {"name": name, "folder": str(folder / "run"), "seed": seed},
            "model": {
                "name": str(machine.model),
                "device": machine.device,
                "dtype": "bfloat16" if machine.device == "cuda" else "float32",
                "family": "chatml",
            },
            "schedule": schedule,
            "cells": {
                **cells_of(name, size, training=training),
                "engine": f"benchmarks.gpu.live.warmed:engine?{options}",
                "trainer": "benchmarks.gpu.live.warmed:trainer",
            },
            "transport": {"kind": machine.transport},
            "engine": {"capacity": size.capacity, "kv_tokens": machine.kv_tokens},
            "router": {"capacity": 2 * size.capacity, "kv_s": machine.kv_s},
            "trainer": {
                "pack_tokens": machine.pack_tokens,
                "claim_packs": CLAIM_PACKS,
                "checkpoint": False,
            },
            "tasks": {"kind": "jsonl", "path": str(tasks)},
            "harness": {"argv": list(work.HARNESS)},
            "sandbox": {"kind": "process", "keep": "none"},
            "deadlines": {"agent_s": scale.agent_s, "overall_s": scale.overall_s},
            "evaluate": {"retries": 0},
            "sampling": {"max_tokens": 4096},
            "proxy": {"port": 0, "shards": machine.shards},
            "checkpoint": {"every": 1000},
            "trackers": {"tensorboard": False},
        },
        within_s=within_s,
        is_over_early=True,
    )
