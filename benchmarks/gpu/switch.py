"""A cell changes its role and back, and its engine takes new weights."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.clock import timed
from benchmarks.gpu.networks import qwen3

from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.inference.engine.engine import EngineCore
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer

KV_TOKENS = 524_288
SETTINGS = {
    "model": "Qwen3-0.6B's size, random weights, bf16",
    "kv_tokens": KV_TOKENS,
    "to training": "the engine rests, the trainer is restored",
    "to rollout": "the trainer rests, the engine wakes",
    "reload": "weights on the device into the engine's, checked for shape and finite values",
}


def measure(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample per direction and run; the first switches pin host memory and are named so."""
    network = Network(qwen3())
    trainer = Trainer(
        network,
        section=TrainerConfig(),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
    )
    trainer.offload()
    loop = EngineCore(network, EngineConfig(kv_tokens=KV_TOKENS), model="qwen3")
    state_bytes = 3 * 4 * network.shape.parameters

    def to_training() -> None:
        loop.offload()
        trainer.reload()

    def to_rollout() -> None:
        trainer.offload()
        loop.wake()

    for run in range(runs + 1):
        first = " first" if run == 0 else ""
        for name, switch in (("to training", to_training), ("to rollout", to_rollout)):
            _, taken = timed(switch)
            yield name + first, {"seconds": taken.seconds, "state_bytes": state_bytes}
    weights = {name: one.detach().clone() for name, one in network.module.named_parameters()}
    num_bytes = sum(one.nbytes for one in weights.values())
    for run in range(runs + 1):
        _, taken = timed(lambda run=run: loop.load(weights, version=run))
        if run:
            yield "reload", {"seconds": taken.seconds, "bytes": num_bytes}
