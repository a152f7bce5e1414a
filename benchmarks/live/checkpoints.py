"""Updates with a checkpoint written beside them, and without: what training stands still for."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import results

from gyre.cell.checkpoint import CheckpointWriter, SingleRankCopies
from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.checkpoint_store import name_of, prune
from gyre.model.loader import load_network
from gyre.trainer.offload import Snapshot
from gyre.trainer.trainer import Trainer
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Share

PACKAGES = ("safetensors", "torch", "transformers", "xxhash")
WORK = {"tiny": (8, 1024), "smollm2": (2, 512)}
"""By model, the claims of an update and the tokens of each."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {}
    for model in WORK:
        samples[model] = []
        for sample in measure(model, args.runs):
            samples[model].append(sample)
            print(model, sample, flush=True)
    if not args.dry:
        path = results.write(
            "live-checkpoints",
            samples=samples,
            settings={"claims and tokens of each": WORK, "type": "float32", "device": "cpu"},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def measure(model: str, runs: int) -> Iterator[dict[str, Any]]:
    """Updates by turns without a checkpoint and with one of the weights they begin with."""
    trainer = Trainer(
        load_network(model, device="cpu", dtype=torch.float32),
        section=TrainerConfig(),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
    )
    snapshot = Snapshot(trainer)
    saving = CheckpointWriter(SingleRankCopies(snapshot), trainer.network)
    claims = [claim(number, WORK[model][1]) for number in range(WORK[model][0])]

    def update() -> float:
        began = time.perf_counter()
        for one in claims:
            trainer.train(one, num_executions=len(claims))
        with snapshot.changing():
            trainer.step()
        return time.perf_counter() - began

    with (
        tempfile.TemporaryDirectory(prefix="gyre-checkpoints-") as folder,
        ThreadPoolExecutor(1) as pool,
    ):
        for run in range(runs + 1):
            alone_s = update()
            place = Path(folder) / name_of(trainer.version)
            writing = pool.submit(saving.checkpoint, place, trainer.version, {})
            beside_s = update()
            saved = writing.result()
            prune(Path(folder), keep=1, in_use=())
            if run == 0:
                continue  # Memory is asked for the first time.
            yield {
                "update_s": alone_s,
                "beside_s": beside_s,
                "stalled_s": saved.stalled_s,
                "stalled_fraction": saved.stalled_s / alone_s,
                "slower": beside_s / alone_s,
                "copied_s": saved.copied_s,
                "durable_s": saved.seconds,
                "num_bytes": saved.num_bytes,
            }


def claim(seed: int, num_tokens: int) -> Claim:
    """One execution of one row."""
    ids = np.random.default_rng(seed).integers(0, 700, num_tokens, dtype=np.int32)
    count = num_tokens - 1
    pack = Pack(
        ids=ids,
        positions=np.arange(num_tokens, dtype=np.int32),
        tout=np.full(num_tokens, num_tokens, dtype=np.int32),
        predictors=np.arange(count, dtype=np.int32),
        labels=ids[1:],
        # Above what the networks give, so that nothing is clipped and all is computed.
        behaviour=np.full(count, -1.0, dtype=np.float32),
        shares=np.zeros(count, dtype=np.int32),
    )
    share = Share(execution=ExecutionId(f"e{seed}"), advantage=1.0, num_targets=count)
    return Claim(shares=(share,), packs=(pack,))


if __name__ == "__main__":
    main()
