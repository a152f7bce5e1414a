"""Training on an execution shaped like the case study: each shared prefix once, beside rows."""

import gc
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.case_study import ADMITTED, MESSAGE_TOKENS, PATHS, SYSTEM_TOKENS, rows
from benchmarks.gpu.clock import Taken, timed
from benchmarks.gpu.networks import LARGE, SMALL, qwen3

from gyre.batching.packing import AdmittedExecution, PackingResult, pack
from gyre.config.sections import LossConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer
from gyre.trajectory.selection import Row
from gyre.types.ids import ExecutionId

PACK_TOKENS = 65_536
CASES = {"5 trajectories": ADMITTED, "all trajectories": tuple(range(len(PATHS)))}
SIZES = {"": SMALL, "8B, ": LARGE}
SETTINGS = {
    "model": "Qwen3-0.6B's size, random weights, bf16",
    "8B": "the same with 24 of the 36 layers of Qwen3-8B's size",
    "pack_tokens": PACK_TOKENS,
    "system_tokens": SYSTEM_TOKENS,
    "message_tokens": MESSAGE_TOKENS,
    "rows": "each path alone, by the same trainer and the faster attention for rows",
    "transformers": "each path alone, gradient checkpointing, sdpa, loss over full logits",
}


def measure(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample per size, case, way and run; our two ways take turns."""
    for name, size in SIZES.items():
        # One layer meets every kernel and every shape that many will.
        for _ in _ours(name, size | {"num_hidden_layers": 1}, 1):
            pass
        yield from _ours(name, size, runs if size is SMALL else 2)
    yield from _plain()


def _ours(name: str, size: dict[str, Any], runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    network = Network(qwen3(size=size))
    trainer = Trainer(
        network,
        section=TrainerConfig(pack_tokens=PACK_TOKENS),
        objective=LossConfig(),
        optimizer=None,
    )
    for case, chosen in CASES.items():
        admitted = AdmittedExecution(
            execution=ExecutionId("e"), advantage=1.0, rows=tuple(rows(chosen))
        )
        ways = {
            way: pack([admitted], pack_tokens=PACK_TOKENS, claim_tokens=2**24, sharing=sharing)
            for way, sharing in (("rows", False), ("tree", True))
        }
        for _ in range(runs):
            for way, packing in ways.items():
                _, taken = timed(partial(_train, trainer, packing))
                yield f"{name}{case}, {way}", _sample(network, packing, taken)
    del trainer, network
    gc.collect()
    torch.cuda.empty_cache()


def _sample(network: Network, packing: PackingResult, taken: Taken) -> dict[str, Any]:
    tokens, targets, pairs = packing.num_tokens, packing.num_targets, packing.num_pairs
    return {
        "seconds": taken.seconds,
        "peak_bytes": taken.peak_bytes,
        "tokens": tokens,
        "pairs": pairs,
        "targets": targets,
        "model_flops": 3 * network.shape.forward_flops(tokens, targets, pairs),
    }


def _train(trainer: Trainer, packing: PackingResult) -> None:
    for claim in packing.claims:
        trainer.train(claim, num_executions=1)
    trainer.clear()


def _plain() -> Iterator[tuple[str, dict[str, Any]]]:
    model: Any = qwen3().train()
    model.gradient_checkpointing_enable()
    for case, chosen in CASES.items():
        given = rows(chosen)
        _backward(model, given[:1])
        _, taken = timed(lambda given=given: _backward(model, given))
        tokens = sum(len(row.ids) for row in given)
        yield (
            f"{case}, transformers",
            {"seconds": taken.seconds, "peak_bytes": taken.peak_bytes, "tokens": tokens},
        )


def _backward(model: Any, given: Sequence[Row]) -> None:
    for row in given:
        ids = torch.from_numpy(row.ids).long().cuda()[None]
        labels = np.full(len(row.ids), -100)
        labels[row.targets] = row.ids[row.targets]
        model(input_ids=ids, labels=torch.from_numpy(labels).cuda()[None]).loss.backward()
    model.zero_grad()
