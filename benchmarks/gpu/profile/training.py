"""Where a training step's time goes: forward, backward, update, and the kernels of each."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from benchmarks.gpu.networks import H200_BF16_FLOPS
from benchmarks.gpu.profile.hosts import taken
from benchmarks.gpu.profile.kernels import by_group, kernels
from benchmarks.gpu.step import row

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.optimizer import Adam
from gyre.trainer.trainer import Trainer

NAMED = 24
RUNS = 2


def measure(network: Network, num_tokens: int = 32_768) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first step, which compiles, later ones, and their kernels."""
    trainer = Trainer(
        network,
        section=TrainerConfig(pack_tokens=num_tokens),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
    )
    claim = row(0, num_tokens=num_tokens, vocabulary=network.shape.vocabulary)

    def step() -> None:
        trainer.train(claim, num_executions=1)
        trainer.step()
        _settle()

    yield "first step", {"seconds": _timed(step)}
    yield "second step", {"seconds": _timed(step)}
    shape = network.shape
    pairs = num_tokens * (num_tokens + 1) // 2
    flops = 3 * shape.forward_flops(num_tokens, num_tokens - 1, pairs)
    for _ in range(RUNS):
        seconds = _timed(step)
        yield "step", {"seconds": seconds, "mfu": flops / seconds / H200_BF16_FLOPS}
    with taken(
        (Trainer, "forward", "forward"),
        (Trainer, "_back", "weigh and backward"),
        (Adam, "step", "update"),
    ) as host:
        _timed(step)
    yield "step: host", dict(host.seconds)
    seen = kernels(step)
    yield "step: device", by_group(seen) | {"all": sum(one.seconds for one in seen)}
    for one in seen[:NAMED]:
        sample = {"name": one.name[:160], "calls": one.calls, "seconds": one.seconds}
        yield "step: kernels", sample


def _timed(work: Any) -> float:
    _settle()
    began = perf_counter()
    work()
    _settle()
    return perf_counter() - began


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
