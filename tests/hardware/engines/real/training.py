"""A whole run with real servers in its cells: a small model, a task that it can be better at."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from tests.flows.live.recomputed import digests
from tests.flows.live.running import Ran

from gyre.controller.run_dir import read_run
from gyre.model.checkpoint import save
from gyre.model.hf_config import describe
from gyre.model.loader import new_network
from gyre.model.registry import model_folder
from gyre.testing import light_agent
from real import installed
from real.server import RECIPES, Kind

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SHAPE = {
    "model_type": "qwen2",
    "vocab_size": 784,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 777,
}
"""As tiny, but for heads of 32, the smallest that vLLM has on a CPU."""
JUDGE = (
    "import os, pathlib;"
    "said = pathlib.Path('replies.txt').read_text();"
    "score = sum(one in 'aeiou' for one in said) / max(1, len(said));"
    "pathlib.Path(os.environ['GYRE_RESULTS'], 'reward.txt').write_text(f'{score:.4f}')"
)
"""The share of vowels in what was said: it differs between any two executions."""
THREADS = 1
"""Of whoever trains, because sums of several threads are others."""
CONTEXT = 1024
SERVER_ARGS: dict[Kind, tuple[str, ...]] = {
    "vllm": ("--enforce-eager", "--max-model-len", str(CONTEXT)),
    "sglang": (
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--disable-overlap-schedule", "--context-length", str(CONTEXT)),
    ),
}


def write_model(folder: Path) -> Path:
    """New weights with the tokenizer of `tiny`."""
    network = new_network(describe(SHAPE, where="test"), seed=0)
    source = folder.with_name("files")
    source.mkdir()
    for name in TOKENIZER:
        shutil.copy(model_folder("tiny") / name, source / name)
    network.module.name_or_path = str(source)
    save(network, folder, version=0)
    return folder


def write_tasks(path: Path, *, count: int) -> Path:
    evaluation = {"argv": [sys.executable, "-I", "-S", "-c", JUDGE], "score": "reward.txt"}
    turns = json.dumps([{"reply_s": 0.1}, {"reply_s": 0.1}])
    lines = [
        json.dumps({"id": f"talk-{number:02}", "instruction": turns, "evaluation": evaluation})
        for number in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def tables(folder: Path, kind: Kind, *, weights: str, steps: int) -> dict[str, dict[str, Any]]:
    """The tables of its run file."""
    return {
        "run": {"name": kind, "folder": str(folder / "run")},
        "model": {
            "name": str(write_model(folder / "model")),
            "device": "cpu",
            "dtype": "float32",
            "family": "chatml",
        },
        "schedule": {
            "groups_per_batch": 2,
            "executions_per_group": 3,
            "steps": steps,
            "extra_dispatch": 0.5,
            "supply_dwell_s": 0.5,
        },
        "cells": {
            "count": 2,
            "capacity": 8,
            "engine": kind,
            "threads": THREADS,
            "server": {
                "python": str(installed.python(kind)),
                "args": list(SERVER_ARGS[kind]),
                "env": RECIPES[kind].environment,
                "weights": weights,
                "start_s": 500.0,
            },
        },
        "tasks": {"kind": "jsonl", "path": str(write_tasks(folder / "tasks.jsonl", count=8))},
        "harness": {"argv": [sys.executable, "-S", "-E", light_agent.__file__, "{instruction}"]},
        "sandbox": {"kind": "process"},
        "sampling": {"max_tokens": 24},
        "optimizer": {"lr": 1e-3},
        "trainer": {"deterministic": True},
        "engine": {"kv_tokens": 16384, "block_tokens": 32},
        "proxy": {"port": 0, "context_tokens": CONTEXT},
        "trackers": {"tensorboard": False},
    }


def recomputed(ran: Ran, path: Path) -> tuple[dict[int, str], dict[int, float]]:
    """By version the digests and by step the norms that one trainer gets from the journal."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        found: tuple[dict[int, str], dict[int, float]] = digests(ran, read_run(path).config)
    finally:
        torch.set_num_threads(before)
    return found
