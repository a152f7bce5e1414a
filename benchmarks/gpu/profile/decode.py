"""Where a decoding pass's time goes: the host's parts, the device's kernels, and the floor."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.profile.hosts import taken
from benchmarks.gpu.profile.kernels import by_group, kernels

import gyre.inference.engine.engine as looped
from gyre.config.sections import EngineConfig
from gyre.inference.engine.engine import EngineCore, SampledTokens
from gyre.inference.engine.forward import Forward
from gyre.inference.engine.scheduler import BatchScheduler
from gyre.model.network import Network
from gyre.types.sampling import GenerateRequest, SamplingParams

WARM_PASSES = 8
NAMED = 24
"""Kernels that are named; the rest are in the sums of their groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Calls that decode together, all of one length."""

    name: str
    calls: int
    prompt: int
    passes: int
    """That are timed; the calls grow by as many tokens while the host is timed, and again while
    kernels are seen."""

    @property
    def kv_tokens(self) -> int:
        return self.calls * (self.prompt + 4 * self.passes + 512)


SCENES = (
    Scene(name="256 calls of 384", calls=256, prompt=352, passes=64),
    Scene(name="32 calls of 8,192", calls=32, prompt=8_160, passes=64),
)
SMALL_SCENES = (Scene(name="0.13B, 64 calls of 1,024", calls=64, prompt=992, passes=64),)
"""Of a model so small that the host may have more to do than the device."""


def measure(
    network: Network, bytes_per_s: float, scenes: tuple[Scene, ...] = SCENES
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Samples of each scene: its pass as a whole, the host's parts, groups of kernels, kernels."""
    for scene in scenes:
        section = EngineConfig(
            capacity=scene.calls, kv_tokens=scene.kv_tokens, prefill_tokens=16_384
        )
        loop = EngineCore(network, section, model="profiled")
        _start(loop, scene, network.shape.vocabulary)
        yield from _profiled(loop, network, scene, bytes_per_s)
        loop.offload()


def _start(loop: EngineCore, scene: Scene, vocabulary: int) -> None:
    """Every call has its prompt and a few tokens, and whatever is compiled is compiled."""
    rng = np.random.default_rng(0)
    for number in range(scene.calls):
        ids = array("i", rng.integers(0, vocabulary, scene.prompt).tolist())
        sampling = SamplingParams(max_tokens=4 * scene.passes + 256)
        loop.submit(
            GenerateRequest(
                id=str(number),
                input_ids=ids.tobytes(),
                sampling=sampling,
                execution=str(number),
            )
        )
    decoded = 0
    while decoded < WARM_PASSES:
        decoded += len(loop.step()) == scene.calls


def _profiled(
    loop: EngineCore, network: Network, scene: Scene, bytes_per_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    plain_s = _passes(loop, scene.passes)
    shape, width = network.shape, network.dtype.itemsize
    length = scene.prompt + WARM_PASSES + scene.passes // 2
    weight_s = shape.parameters * width / bytes_per_s
    keys_s = scene.calls * length * shape.kv_values_per_token * width / bytes_per_s
    with taken(
        (EngineCore, "step", "step"),
        (EngineCore, "_launch", "launch"),
        (EngineCore, "_advance", "advance"),
        (looped, "lay_out", "lay_out"),
        (looped, "draws_for", "draws_for"),
        (BatchScheduler, "turn", "turn"),
        (BatchScheduler, "follow", "follow"),
        (BatchScheduler, "done", "done"),
        (type(_forward(loop)), "__call__", "forward"),
        (type(_forward(loop)), "sample", "sample"),
        (SampledTokens, "__init__", "bring back"),
        (SampledTokens, "wait", "wait"),
    ) as host:
        watched_s = _passes(loop, scene.passes)
    seen = kernels(lambda: _passes(loop, scene.passes))
    busy_s = sum(one.seconds for one in seen) / scene.passes
    yield (
        scene.name,
        {
            "pass_s": plain_s,
            "watched_pass_s": watched_s,
            "device_busy_s": busy_s,
            "weights_floor_s": weight_s,
            "keys_floor_s": keys_s,
            "roofline": (weight_s + keys_s) / plain_s,
        },
    )
    per_pass = {name: value / scene.passes for name, value in host.seconds.items()}
    yield f"{scene.name}: host", dict(sorted(per_pass.items(), key=lambda one: -one[1]))
    groups = {name: value / scene.passes for name, value in by_group(seen).items()}
    yield f"{scene.name}: device", groups
    for one in seen[:NAMED]:
        calls, seconds = one.calls / scene.passes, one.seconds / scene.passes
        yield (
            f"{scene.name}: kernels",
            {"name": one.name[:160], "calls": calls, "seconds": seconds},
        )


def _forward(loop: EngineCore) -> Forward:
    found: Forward = loop._forward
    return found


def _passes(loop: EngineCore, count: int) -> float:
    """Seconds of a pass, over so many of them."""
    _settle()
    began = perf_counter()
    for _ in range(count):
        loop.step()
    _settle()
    return (perf_counter() - began) / count


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
