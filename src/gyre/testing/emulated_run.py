"""A whole run without a model's cost: tasks that only take time, and a run file for them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from gyre.testing import light_agent

CHECK = (
    "sh",
    "-c",
    "cksum replies.txt | tr -dc 0-9 | tail -c 2 | sed s/^/0./ > $GYRE_RESULTS/reward.txt",
)
"""A score between 0 and 0.99 that differs from one execution to the next."""
LONGEST = 5.0
"""Times the mean that an execution takes at most."""

Turn = Mapping[str, float]
"""As the light agent reads it: reply_s, tool_s and words."""


def workload(*, tasks: int, members: int, seed: int, mean_s: float) -> list[list[list[Turn]]]:
    """By task and member the turns of an execution; times have a long tail, and so have lengths."""
    rng = Random(f"{seed}/workload")
    return [[_turns(rng, mean_s) for _ in range(members)] for _ in range(tasks)]


def _turns(rng: Random, mean_s: float) -> list[Turn]:
    total_s = mean_s * min(LONGEST, rng.lognormvariate(-0.25, 0.7))
    number = rng.randint(2, 4)
    reply_s, tool_s = (round(part * total_s / number, 3) for part in (0.7, 0.3))
    return [{"reply_s": reply_s, "tool_s": tool_s, "words": rng.randint(8, 24)}] * number


def write_tasks(path: Path, work: Sequence[Sequence[Sequence[Turn]]]) -> Path:
    """The file of tasks that a run reads."""
    lines = [
        json.dumps(
            {
                "id": f"task-{number}",
                "instruction": json.dumps({"members": members}),
                "evaluation": {"argv": CHECK, "score": "reward.txt"},
            }
        )
        for number, members in enumerate(work)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


TABLES: Mapping[str, Mapping[str, Any]] = {
    "model": {"name": "tiny"},
    "cells": {
        "count": 4,
        "capacity": 5,
        "engine": "gyre.testing.emulated:engine",
        "trainer": "gyre.testing.emulated:trainer?base_s=0.3",
    },
    "engine": {"kv_tokens": 16384},
    "harness": {"argv": ["python3", "-S", "-E", light_agent.__file__, "{instruction}"]},
    "deadlines": {"agent_s": 600.0, "overall_s": 900.0},
    "sampling": {"max_tokens": 64},
    "proxy": {"port": 0},
    "trainer": {"pack_tokens": 160, "claim_packs": 1},
    "sandbox": {"kind": "process"},
    "trackers": {"tensorboard": False},
}
"""What such a run needs, besides [run], [schedule] and [tasks]."""


def tables(
    folder: Path, tasks: Path, *given: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The tables of a run in a folder, with those given put over them, key by key."""
    found: dict[str, dict[str, Any]] = {name: dict(one) for name, one in TABLES.items()}
    found["run"] = {"name": "emulated", "folder": str(folder)}
    found["tasks"] = {"kind": "jsonl", "path": str(tasks)}
    for change in given:
        for name, table in change.items():
            found.setdefault(name, {}).update(table)
    return found
