"""A live run on a GPU under one placement: its tables, and what its journal says afterwards."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.live import work
from benchmarks.gpu.live.work import Scale
from benchmarks.live.running import Ran, trained

CELLS = 4
CAPACITY = 18
BATCH, GROUP = 8, 4
"""A sixteenth of the paper's batch of 32 groups of 16, with a sixteenth of its 1,152 slots."""
CLAIM_PACKS = 4
STEPS = 6
STALENESS = 1.0
GROUPS = 64
"""More than any placement admits."""
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
}
"""The paper's, at a mean staleness of 1."""
COMMON = {
    "groups_per_batch": BATCH,
    "executions_per_group": GROUP,
    "supply_dwell_s": 0.3,
    "evaluation_holds_slot": True,
    "endless_dispatch": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run is told of where it runs."""

    model: Path
    device: str
    kv_tokens: int
    pack_tokens: int
    shards: int
    """Processes of its proxy."""


def cells_of(name: str, *, training: int) -> dict[str, Any]:
    """Four cells' worth; under async so many train, and the others only serve."""
    if name != "async":
        return {"count": CELLS, "capacity": CAPACITY}
    standalone = [CAPACITY] * (CELLS - training)
    return {"count": training, "capacity": CAPACITY, "standalone": standalone}


def schedule_of(name: str, *, steps: int) -> dict[str, Any]:
    return {**COMMON, **SCHEDULES[name], "steps": steps}


def live(
    folder: Path,
    name: str,
    machine: Machine,
    scale: Scale,
    *,
    seed: int,
    steps: int,
    training: int,
) -> Ran:
    """One run in a folder of its own; raises CalledProcessError if it does not end well."""
    # What an earlier one left that did not.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    groups = work.work(scale, groups=GROUPS, members=GROUP, seed=seed)
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
            "schedule": schedule_of(name, steps=steps),
            "cells": {
                **cells_of(name, training=training),
                "engine": f"benchmarks.gpu.live.warmed:engine?seed={seed}",
                "trainer": "benchmarks.gpu.live.warmed:trainer",
            },
            "engine": {"capacity": CAPACITY, "kv_tokens": machine.kv_tokens},
            # Calls that move compute their prompts again, which takes less time than the way of
            # their keys and values through main memory.
            "router": {"capacity": 2 * CAPACITY, "kv_s": 0.0},
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
    )
