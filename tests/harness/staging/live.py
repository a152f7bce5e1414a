"""A live run of real programs: its files, and a process without a network that plays it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from staging.cut import unshared
from staging.live_script import ASKED, ERRANDS, MEMBERS
from staging.program import NAMES

from gyre.config.toml import spelled
from gyre.model.checkpoint import save
from gyre.model.hf_config import describe
from gyre.model.loader import new_network
from gyre.testing.tokenizer import tokenizer, write_tokenizer

STAGE = Path(__file__).with_name("live_stage.py")
SCRIPT = Path(__file__).with_name("live_script.py")
CONTEXT_TOKENS = 131_072
PACK_TOKENS = 75_000
"""Room for the trajectories of one execution and not of two."""
MODEL = {
    "model_type": "llama",
    "vocab_size": tokenizer().get_vocab_size(),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": True,
}
"""It is trained and published, and says nothing: a script speaks for it."""
ENDED = "ended"
"""Folder of files of executions that have ended and wait for the proxy's counts to be noted."""
LONG_S = 1800.0
"""Limits of the run that are not what it is about."""
NUM_TASKS = 200
LEDGER = "ledger.jsonl"
"""What engines note of themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """One run of `gyre train` whose harness is a real program."""

    name: str
    program: str
    nonce: str
    """Written to nonce.txt in every workspace; no script knows it."""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of the run file beside or in place of those below."""
    held: int = 0
    """So many groups of a burst, of which every second waits until two cells have entered training
    as often as there are bursts before it, and once more; with 0 none waits."""
    claim_s: float = 0.0
    """How long a cell trains on one claim."""
    limit_s: float = 2 * LONG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """A process that was seen."""

    pid: int
    started: int
    """In ticks since the machine started, so that a pid that is used again is another process."""
    exe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toured:
    """What was seen of a run while it went on."""

    returncode: int
    stdout: str
    seconds: float
    interfaces: list[str]
    routes: list[str]
    metrics: str
    """The proxy's, as they stood last."""
    harnesses: dict[str, list[Witnessed]]
    """Children of supervisors, by execution."""
    cells: dict[str, list[Witnessed]]
    """By name."""


def play_live(tour: Tour, folder: Path) -> Toured:
    """The run, played in `folder` by a process that has no network.

    In one folder a second run finds the same paths as the first, so that prompts are the same.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _write_files(tour, folder)
    (folder / "tour.json").write_bytes(msgspec.json.encode(tour))
    command = [*unshared(), sys.executable, str(STAGE), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=tour.limit_s + 60)
    if done.returncode != 0:
        message = f"the stage ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        raise RuntimeError(message)
    return msgspec.json.decode((folder / "toured.json").read_bytes(), type=Toured)


def _write_files(tour: Tour, folder: Path) -> None:
    files = folder / "files"
    files.mkdir()
    (files / "nonce.txt").write_text(tour.nonce + "\n")
    waits = f'own=$(mktemp {folder / ENDED}/XXXXXX); while [ -e "$own" ]; do sleep 0.1; done'
    judge = f'{waits}; cp score.txt "$GYRE_RESULTS/reward.txt"'
    evaluation = {"argv": ["sh", "-c", judge], "score": "reward.txt", "attempt_s": LONG_S}
    with (folder / "tasks.jsonl").open("w") as tasks:
        for number in range(NUM_TASKS):
            task = {"id": f"task-{number}", "instruction": f"{ASKED} {number}: go"}
            tasks.write(json.dumps(task | {"files": "files", "evaluation": evaluation}) + "\n")
    save(new_network(describe(MODEL, where="live"), seed=0), folder / "model", version=0)
    write_tokenizer(folder / "model")
    lines: list[str] = []
    for name, table in _tables(tour, folder).items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {spelled(value)}" for key, value in table.items()]
    (folder / "run.toml").write_text("\n".join(lines) + "\n")


def _tables(tour: Tour, folder: Path) -> dict[str, dict[str, Any]]:
    kind, _, version = NAMES[tour.program].partition("@")
    at_once = {"CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": str(ERRANDS)}
    engine = {"script": f"{SCRIPT}:live", "chunk_tokens": 8, "log": folder / LEDGER}
    found: dict[str, dict[str, Any]] = {
        "run": {"name": tour.name, "folder": str(folder / "run")},
        "model": {"name": str(folder / "model"), "family": "qwen3"},
        "tasks": {"kind": "jsonl", "path": str(folder / "tasks.jsonl")},
        "harness": {"kind": kind, "version": version, "env": at_once},
        # The witness knows programs as children of their supervisors.
        "sandbox": {"kind": "process"},
        "deadlines": {"agent_s": LONG_S, "overall_s": 2 * LONG_S},
        "engine": {"kv_tokens": 8 * CONTEXT_TOKENS},
        "trackers": {"tensorboard": False},
        "schedule": {
            "executions_per_group": MEMBERS,
            **dict.fromkeys(("publish_s", "lease_s", "group_s"), LONG_S),
        },
        "router": {"kv_s": LONG_S},
        "cells": {
            "threads": 1,
            "engine": f"gyre.testing.timed_engine:engine?{urlencode(engine)}",
            "trainer": f"staging.live_trainer:trainer?base_s={tour.claim_s}",
        },
        # One execution a claim, so that there is something to share out.
        "trainer": {"pack_tokens": PACK_TOKENS, "claim_packs": 1},
    }
    for name, table in tour.tables.items():
        found.setdefault(name, {}).update(table)
    return found
