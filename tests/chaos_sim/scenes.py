"""What a seed decides before its run begins: shape, tasks, and how much goes wrong by itself."""

import json
from dataclasses import dataclass
from random import Random

from gyre.config.toml import spelled
from gyre.controller.run_dir import RunFile, read_run

TASK = {
    "instruction": "go",
    "evaluation": {"argv": ["true"], "score": "reward.txt", "attempts": 3, "attempt_s": 5.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run to simulate."""

    run: RunFile
    trouble: float
    """Part of all executions, evaluators and orders that go wrong by themselves."""
    faults: int
    """How many faults are injected."""
    pause_s: float
    """Between two of them, on the average."""
    write_s: float
    """What half of a checkpoint takes at most."""


def scene(seed, folder, shards=1):
    rng = Random(f"{seed}/scene")
    batch = rng.choice((1, 2, 2))
    size = rng.choice((2, 2, 3))
    burst = rng.choice((1, 1, 2))
    cells = rng.choice((1, 2, 2, 3, 4))
    surplus = rng.choice((0, 0, 0, 1))
    placement = rng.choice(("elastic", "elastic", "elastic", "async", "colocate"))
    standalone = [rng.randint(1, 3)] if placement == "async" or rng.random() < 0.25 else []
    slots = rng.choice((0, 0, 1))
    tables = {
        "run": {"name": "chaos", "folder": str(folder / "run"), "seed": seed},
        "model": {"name": "tiny"},
        "schedule": {
            "groups_per_batch": batch,
            "executions_per_group": size,
            "steps_per_burst": burst,
            "steps": burst * rng.choice((1, 2, 3)),
            "extra_dispatch": rng.choice((0, 0.5, 1)) if batch > 1 else float(rng.randint(0, 1)),
            "placement": placement,
            "streaming": rng.random() < 0.8,
            "surplus": surplus,
            "supply_dwell_s": rng.choice((0.0, 0.5)),
            "rescue_s": 20.0,
            "min_valid": rng.choice((1, 2)),
            "max_void": 1.0,
            "publish_s": 10.0,
            "join_s": rng.choice((0.1, 5.0)),
            "lease_s": 15.0,
        },
        "cells": {"count": cells, "capacity": rng.randint(1, 4), "standalone": standalone},
        "harness": {"argv": ["agent"]},
        "deadlines": {"agent_s": 120.0, "overall_s": 180.0},
        "sampling": {"max_tokens": 64},
        "proxy": {"port": 0, "shards": shards},
        "router": {"hold_s": 400.0},
        "trainer": {"pack_tokens": 256, "claim_packs": 1},
        "trackers": {"tensorboard": False},
    }
    write_tasks(folder / "tasks.jsonl", rng.choice((3, 12)))
    tables["tasks"] = {"kind": "jsonl", "path": str(folder / "tasks.jsonl")}
    if slots:
        write_tasks(folder / "held-out.jsonl", 2)
        tables["evaluation"] = {"slots": slots}
        tables["evaluation.tasks"] = {"kind": "jsonl", "path": str(folder / "held-out.jsonl")}
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {spelled(one)}" for key, one in table.items())]
    path = folder / "run.toml"
    path.write_text("\n".join(lines) + "\n")
    return Scene(
        run=read_run(path),
        trouble=rng.choice((0.0, 0.05, 0.2)),
        faults=rng.choice((0, 2, 4, 8)),
        pause_s=rng.choice((0.7, 3.0)),
        write_s=rng.choice((0.1, 3.0)),
    )


def write_tasks(path, count):
    lines = [json.dumps({"id": f"task-{number}", **TASK}) for number in range(count)]
    path.write_text("\n".join(lines) + "\n")
