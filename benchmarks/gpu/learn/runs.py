"""A run of letters under one trajectory budget: its tables, and what its journal says of it."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.config.toml import spelled
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.evals.results import SUMMARY_FILE
from gyre.journal.journal import JournalContents, read
from gyre.model.checkpoint_store import EVALUATIONS
from gyre.types.run_events import ClaimTrained, EvaluationRound, GroupPacked, StepMade

BUDGETS: Mapping[str, int | str] = {"J=1": 1, "J=5": 5, "uncapped": "all"}
"""J_max of each run, by what it is called."""
TRAINED, HELD_OUT = "train", "held-out"
"""Seeds of the tasks: a run's own, and those it is only measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is; the defaults are for a GPU."""

    model: str = "smollm2"
    device: str = "cuda"
    batch: int = 3
    group: int = 8
    letters: int = 12
    sentences: int = 56
    chatter: int = 4
    """How often the examples of letters say theirs."""
    compact_at: int = 6800
    """Tokens of the clerk's context. Its window has 8,192, and the letter by which it goes beyond,
    what is said of it and the summary take up to 750."""
    tasks: int = 512
    held_out: int = 32
    every: int = 10
    """Steps from one evaluation to the next."""
    lr: float = 5e-5
    slots: int = 80
    """Executions at once: the batch of a step, the one ahead of it, and an evaluation."""
    kv_tokens: int = 600_000
    pack_tokens: int = 16_384
    percent: int = 25
    """Of the GPU's multiprocessors, the most that a process computes on: so three trainers leave a
    quarter to the engines, whose small kernels would wait for their large ones otherwise."""


ON_A_CPU = Sizes(
    device="cpu",
    batch=3,
    group=6,
    letters=6,
    sentences=2,
    chatter=1,
    compact_at=640,
    held_out=24,
    every=8,
    kv_tokens=60_000,
    pack_tokens=4096,
    slots=60,
)
"""The same on two cores: letters of three lines, a summary behind the fourth or fifth, and nine
trajectories of an execution, so that five are not all of them."""


def tables(folder: Path, name: str, sizes: Sizes, *, seed: int, steps: int) -> dict[str, Any]:
    """The run file's tables; runs of several budgets differ in nothing but [draw] and names."""
    on_gpu = sizes.device == "cuda"
    return {
        "run": {"name": name, "folder": str(folder), "seed": seed},
        "model": {"name": sizes.model, "device": sizes.device, "dtype": "bfloat16"},
        # One process serves and one trains, and both always work: a batch is ahead of its step.
        "schedule": {
            "groups_per_batch": sizes.batch,
            "executions_per_group": sizes.group,
            "steps": steps,
            "steps_per_burst": 1,
            "extra_dispatch": 1.0,
            "placement": "async",
        },
        "cells": {
            **{"count": 1, "capacity": 1, "standalone": [sizes.slots]},
            **({"trainer": "benchmarks.gpu.learn.eager:trainer"} if on_gpu else {}),
        },
        "draw": {"max_trajectories": BUDGETS[name]},
        "tasks": _tasks(sizes, TRAINED, sizes.tasks),
        "evaluation": {"every": sizes.every, "slots": sizes.held_out},
        "evaluation.tasks": _tasks(sizes, HELD_OUT, sizes.held_out),
        "harness": {
            "argv": [
                *("python3", "-I", "-S", "{here}/benchmarks/gpu/learn/agent.py"),
                *(str(sizes.compact_at), str(sizes.chatter), "{instruction}"),
            ]
        },
        # The agent carries out nothing but what it knows to stay in its folder.
        "sandbox": {"kind": "process", "keep": "none"},
        "deadlines": {"agent_s": 300.0, "overall_s": 360.0},
        "sampling": {"temperature": 0.7, "max_tokens": 48},
        # So small a model moves further in a step than the bounds for large ones allow.
        "objective": {"clip_low": 0.9, "clip_high": 1.1},
        "optimizer": {"lr": sizes.lr, "weight_decay": 0.0},
        # A GPU has room for all that a pack makes of so small a model, and not for four of them.
        "trainer": {
            "pack_tokens": sizes.pack_tokens,
            **({"checkpoint": False, "claim_packs": 1} if on_gpu else {}),
        },
        "engine": {"capacity": sizes.slots, "kv_tokens": sizes.kv_tokens},
        "router": {"capacity": sizes.slots},
        "proxy": {"port": 0, "context_tokens": 8192},
        "checkpoint": {"every": 1000},
        "trackers": {"tensorboard": False},
    }


def source(sizes: Sizes, seed: str, count: int) -> str:
    """Tasks of this size, as run files and commands name them."""
    asked = f"seed={seed}&count={count}&letters={sizes.letters}&sentences={sizes.sentences}"
    return f"benchmarks.gpu.learn.tasks:rounds?{asked}"


def _tasks(sizes: Sizes, seed: str, count: int) -> dict[str, Any]:
    return {"kind": "python", "source": source(sizes, seed, count)}


def written(path: Path, found: Mapping[str, Mapping[str, Any]]) -> Path:
    """The run file of some tables."""
    lines: list[str] = []
    for name, table in found.items():
        lines += [f"[{name}]", *(f"{key} = {spelled(value)}" for key, value in table.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def sample(folder: Path, *, seed: int) -> dict[str, Any]:
    """Step by step what a run came to so far, and every evaluation of it."""
    journal = read(folder / "journal", kinds=JOURNAL_EVENTS)
    steps = [(now, fact) for now, fact in journal.facts((StepMade,))]
    seconds, claimed = _by_step(journal)
    packed = defaultdict(list)
    for _, fact in journal.facts((GroupPacked,)):
        packed[fact.step].append(fact)
    return {
        "seed": seed,
        "made_at_s": [now for now, _ in steps],
        "scores": [one.reward for _, one in steps],
        "gradient_norms": [one.gradient_norm for _, one in steps],
        "forward_backward_s": [seconds[one.step] for _, one in steps],
        "step_s": [one.step_s for _, one in steps],
        "executions": [claimed[one.step] for _, one in steps],
        "trajectories": [sum(g.num_trajectories for g in packed[one.step]) for _, one in steps],
        "packed_tokens": [sum(g.num_tokens for g in packed[one.step]) for _, one in steps],
        "targets": [sum(g.num_targets for g in packed[one.step]) for _, one in steps],
        "held_out": [*_rounds(journal), *_last_round(folder)],
    }


def _by_step(journal: JournalContents) -> tuple[dict[int, float], dict[int, int]]:
    """By step: seconds that its claims took, and executions that were in them."""
    seconds: dict[int, float] = defaultdict(float)
    executions: dict[int, int] = defaultdict(int)
    for _, fact in journal.facts((ClaimTrained,)):
        seconds[fact.step] += fact.seconds
        executions[fact.step] += fact.num_executions
    return seconds, executions


def _rounds(journal: JournalContents) -> list[dict[str, Any]]:
    return [
        {
            "version": fact.version,
            "mean": fact.mean,
            "standard_error": fact.standard_error,
            "num_valid": fact.num_valid,
        }
        for _, fact in journal.facts((EvaluationRound,))
    ]


def _last_round(folder: Path) -> list[dict[str, Any]]:
    """Evaluations beside the run, of the weights that it ended with."""
    found = []
    for path in sorted((folder / EVALUATIONS).glob(f"*/{SUMMARY_FILE}")):
        summary = json.loads(path.read_text())
        score = summary["spread"]["score"]
        found.append(
            {
                "version": summary["version"],
                "mean": score["mean"],
                "standard_error": score["standard_error"],
                "num_valid": summary["spread"]["num_valid"],
            }
        )
    return found
