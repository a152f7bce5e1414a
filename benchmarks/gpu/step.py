"""One training step over a row of 32k tokens: ours beside a plain one of transformers."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.clock import ceilings, timed
from benchmarks.gpu.networks import H200_BF16_FLOPS, qwen3

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer
from gyre.types.errors import OutOfMemory
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Share

NUM_TOKENS = 32_768
ALL_KEPT = "gyre, nothing computed again"
SETTINGS = {
    "model": "Qwen3-0.6B's size, random weights, bf16",
    "tokens": NUM_TOKENS,
    "targets": "every token but the first",
    "peak_flops": H200_BF16_FLOPS,
    "gyre": "float32 masters, moments and gradient sums; attention kept, layers recomputed",
    ALL_KEPT: "the same with trainer.checkpoint = false",
    "transformers": "bf16 AdamW, gradient checkpointing, sdpa, loss over full logits",
}


def row(seed: int, *, num_tokens: int = NUM_TOKENS, vocabulary: int = 150_000) -> Claim:
    """One execution of one row, every token of which but the first is a target."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, num_tokens, dtype=np.int32)
    count = num_tokens - 1
    pack = Pack(
        ids=ids,
        positions=np.arange(num_tokens, dtype=np.int32),
        tout=np.full(num_tokens, num_tokens, dtype=np.int32),
        predictors=np.arange(count, dtype=np.int32),
        labels=ids[1:],
        # Above what any random network gives, so that nothing is clipped and all is computed.
        behaviour=np.full(count, -5.0, dtype=np.float32),
        shares=np.zeros(count, dtype=np.int32),
    )
    share = Share(execution=ExecutionId("e"), advantage=1.0, num_targets=count)
    return Claim(shares=(share,), packs=(pack,))


def measure(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample per contestant and run; what takes the most memory comes last, and has none where
    there is no room for it."""
    yield "device", ceilings()
    yield from _ours(runs, "gyre", checkpoint=True)
    _let_go()
    yield from _plain(runs)
    _let_go()
    try:
        yield from _ours(runs, ALL_KEPT, checkpoint=False)
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        print(f"{ALL_KEPT}: {error}", flush=True)


def _let_go() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _sample(network: Network, seconds: float, peak_bytes: int) -> dict[str, Any]:
    pairs = NUM_TOKENS * (NUM_TOKENS + 1) // 2
    flops = 3 * network.shape.forward_flops(NUM_TOKENS, NUM_TOKENS - 1, pairs)
    return {
        "seconds": seconds,
        "tokens_per_s": NUM_TOKENS / seconds,
        "model_flops": flops,
        "mfu": flops / seconds / H200_BF16_FLOPS,
        "peak_bytes": peak_bytes,
    }


def _ours(runs: int, name: str, *, checkpoint: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    network = Network(qwen3())
    trainer = Trainer(
        network,
        section=TrainerConfig(pack_tokens=NUM_TOKENS, checkpoint=checkpoint),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
    )
    claim = row(0)

    def step() -> None:
        trainer.train(claim, num_executions=1)
        trainer.step()

    for run in range(runs + 2):
        _, taken = timed(step)
        if run < 2:
            yield f"{name}-first", {"seconds": taken.seconds}
        else:
            yield name, _sample(network, taken.seconds, taken.peak_bytes)


def _plain(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    model: Any = qwen3().train()
    network = Network(qwen3())
    del network.module
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.from_numpy(row(0).packs[0].ids).long().cuda()[None]

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for run in range(runs + 1):
        _, taken = timed(step)
        if run:
            yield "transformers", _sample(network, taken.seconds, taken.peak_bytes)
