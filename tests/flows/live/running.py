"""Whole runs by the controller, in processes of their own, with everything that it decided."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from gyre.config.toml import spelled
from gyre.journal.reading import Reading, read
from gyre.plan.messages import StopReason
from gyre.plan.replay import EVENTS
from gyre.plan.shape import Shape
from gyre.run.controller import KINDS, Controller
from gyre.run.runfile import read_run
from gyre.testing import light_agent

CHECK = (
    "sh",
    "-c",
    "cksum replies.txt | tr -dc 0-9 | tail -c 2 | sed s/^/0./ > $GYRE_RESULTS/reward.txt",
)
"""A score between 0 and 0.99 that differs from one execution to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run that is over."""

    folder: Path
    shape: Shape
    reason: StopReason | None
    decided: Sequence[tuple[float, Any, tuple[Any, ...]]]
    """Events with their times and what was ordered because of each."""
    reading: Reading

    def facts(self, *kinds: type) -> list[Any]:
        return [fact for _, fact in self.timed(*kinds)]

    def timed(self, *kinds: type) -> list[tuple[float, Any]]:
        return [
            (entry.now, entry.event)
            for entry in self.reading.entries
            if isinstance(entry.event, kinds)
        ]

    @property
    def events(self) -> list[tuple[float, Any]]:
        return self.timed(*EVENTS)


def workload(path: Path, *, tasks: int, members: int, seed: int, mean_s: float) -> Path:
    """Tasks whose executions take times with a long tail, each in a few turns."""
    rng = Random(seed)
    with path.open("w") as file:
        for number in range(tasks):
            turns = [_turns(rng, mean_s) for _ in range(members)]
            task = {
                "id": f"task-{number}",
                "instruction": json.dumps({"members": turns}),
                "evaluation": {"argv": CHECK, "score": "reward.txt"},
            }
            file.write(json.dumps(task) + "\n")
    return path


def _turns(rng: Random, mean_s: float) -> list[dict[str, float]]:
    total_s = mean_s * min(5.0, rng.lognormvariate(-0.25, 0.7))
    number = rng.randint(2, 4)
    reply_s, tool_s = (round(part * total_s / number, 3) for part in (0.7, 0.3))
    words = rng.randint(8, 24)
    return [{"reply_s": reply_s, "tool_s": tool_s, "words": words} for _ in range(number)]


EMULATED = {
    "model": {"name": "tiny"},
    "schedule": {
        "groups_per_batch": 3,
        "executions_per_group": 4,
        "steps_per_burst": 2,
        "steps": 4,
        "extra_dispatch": 1 / 3,
        "supply_dwell_s": 0.05,
    },
    "cells": {
        "count": 4,
        "capacity": 5,
        "engine": "gyre.testing.emulated:engine",
        "trainer": "gyre.testing.emulated:trainer?base_s=0.3",
    },
    "engine": {"kv_tokens": 16384},
    "harness": {
        "argv": ["python3", "-S", "-E", light_agent.__file__, "{instruction}"],
    },
    "deadlines": {"agent_s": 60.0, "overall_s": 90.0},
    "sampling": {"max_tokens": 64},
    "proxy": {"port": 0},
    "trainer": {"pack_tokens": 160, "claim_packs": 1},
    "trackers": {"tensorboard": False},
}
"""A run of a few seconds: real processes and control, emulated durations."""


def write_run(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> Path:
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {spelled(one)}" for key, one in table.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def emulated(
    folder: Path, *, tasks: Path, overrides: Sequence[str] = (), **tables: Mapping[str, Any]
) -> Ran:
    """Runs the emulated run in `folder/run`, with some keys of its tables changed."""
    found: dict[str, dict[str, Any]] = {name: dict(one) for name, one in EMULATED.items()}
    for name, table in tables.items():
        found.setdefault(name, {}).update(table)
    found["run"] = {"name": "live", "folder": str(folder / "run")} | found.get("run", {})
    found["tasks"] = {"kind": "jsonl", "path": str(tasks)}
    return run_live(write_run(folder / "run.toml", found), overrides)


def run_live(path: Path, overrides: Sequence[str] = ()) -> Ran:
    """The run of a file, to its end."""
    run = read_run(path, overrides)
    folder = Path(run.config.run.place)
    decided: list[tuple[float, Any, tuple[Any, ...]]] = []
    controller = Controller(
        run, folder, decided=lambda now, event, orders: decided.append((now, event, tuple(orders)))
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        reason = runner.run(controller.work())
    return Ran(
        folder=folder,
        shape=run.shape,
        reason=reason,
        decided=decided,
        reading=read(folder / "journal", kinds=KINDS),
    )
