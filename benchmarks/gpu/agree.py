"""Log-probabilities noted while sampling beside those a trainer computes for the same tokens."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.networks import qwen3
from torch import Tensor

from gyre.config.sections import EngineConfig
from gyre.inference.engine.engine import EngineCore
from gyre.inference.engine.request import RequestOutput
from gyre.model.network import Network
from gyre.trainer.activation_checkpointing import ActivationCheckpointing
from gyre.trainer.logprobs import on_device, target_logprobs
from gyre.types.sampling import Chunk, GenerateRequest, SamplingParams
from gyre.types.training import Pack

SETTINGS = {
    "model": "Qwen3-0.6B's size, random weights, bf16",
    "compared": "largest and mean absolute difference over all sampled tokens, in nats",
}
NUM_OUTPUT = 48
CUT = 16
"""Tokens after which a call is moved, or weights change."""


@dataclass
class Sampled:
    """One call: its prompt and what was said of its output."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, chunk: Chunk) -> None:
        assert chunk.logprobs is not None
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.version or 0] * len(chunk.ids)


class Scene:
    """Two engines on one network, and a trainer's eyes on what they sample."""

    def __init__(self, network: Network, *, num_calls: int, num_prompt: int) -> None:
        self.network = network
        self._seed = 0
        tokens = num_calls * (num_prompt + NUM_OUTPUT + 256)
        # So many that no call is over before the last one has begun.
        prefill = num_calls * num_prompt // CUT
        section = EngineConfig(kv_tokens=tokens, capacity=num_calls, prefill_tokens=prefill)
        self.one = EngineCore(network, section, model="one")
        self.two = EngineCore(network, section, model="two", seed=1)
        self._num_calls = num_calls
        self._num_prompt = num_prompt

    def calls(self, num_prompt: int | None = None) -> dict[str, Sampled]:
        """Calls with fresh prompts, of about the length named, that have said nothing yet."""
        self._seed += 1
        rng = np.random.default_rng(self._seed)
        vocabulary = self.network.shape.vocabulary
        longest = self._num_prompt // 16 if num_prompt is None else num_prompt
        sizes = rng.integers(longest // 2, longest, self._num_calls)
        return {
            f"{self._seed}-{number}": Sampled(rng.integers(0, vocabulary, size).tolist())
            for number, size in enumerate(sizes)
        }

    def ask(self, loop: EngineCore, calls: Mapping[str, Sampled]) -> None:
        for name, call in calls.items():
            ids = array("i", call.prompt + call.ids).tobytes()
            sampling = SamplingParams(max_tokens=NUM_OUTPUT - len(call.ids))
            loop.submit(GenerateRequest(id=name, input_ids=ids, sampling=sampling, execution=name))

    def run(self, loop: EngineCore, calls: Mapping[str, Sampled], until: int = NUM_OUTPUT) -> None:
        """Steps until every call has that many tokens."""
        while any(len(call.ids) < until for call in calls.values()):
            for report in loop.step():
                assert isinstance(report, RequestOutput), report
                calls[report.id].take(report.chunk)

    def differences(self, calls: Mapping[str, Sampled], version: int | None = None) -> Tensor:
        """Noted minus computed, of tokens of one version or of all."""
        found = []
        for call in calls.values():
            computed = self._computed(call)
            noted = torch.tensor(call.logprobs, dtype=torch.float64)
            chosen = [version is None or one == version for one in call.versions]
            found.append((noted - computed.double().cpu())[torch.tensor(chosen)])
        return torch.cat(found)

    @torch.no_grad()
    def _computed(self, call: Sampled) -> Tensor:
        ids = np.array(call.prompt + call.ids, dtype=np.int32)
        count = len(ids)
        targets = np.arange(len(call.prompt), count, dtype=np.int32)
        pack = Pack(
            ids=ids,
            positions=np.arange(count, dtype=np.int32),
            tout=np.full(count, count, dtype=np.int32),
            predictors=targets - 1,
            labels=ids[targets],
            behaviour=np.array(call.logprobs, dtype=np.float32),
            shares=np.zeros(len(targets), dtype=np.int32),
        )
        return target_logprobs(
            self.network,
            on_device(pack, self.network.device),
            recompute=ActivationCheckpointing.NOTHING,
            logits_tokens=2048,
            temperature=1.0,
        )


def plain(scene: Scene) -> Tensor:
    """Calls that nothing happens to."""
    calls = scene.calls()
    scene.ask(scene.one, calls)
    scene.run(scene.one, calls)
    return scene.differences(calls)


def continued(scene: Scene) -> Tensor:
    """Cancelled in the middle, and continued by another engine from what was sampled."""
    calls = scene.calls()
    scene.ask(scene.one, calls)
    scene.run(scene.one, calls, until=CUT)
    for name, call in calls.items():
        known = [token for chunk in scene.one.cancel(name) for token in chunk.ids]
        assert known == call.ids
    scene.ask(scene.two, calls)
    scene.run(scene.two, calls)
    return scene.differences(calls)


def moved(scene: Scene) -> Tensor:
    """The same, with keys and values exported by the one and imported by the other."""
    calls = scene.calls()
    scene.ask(scene.one, calls)
    scene.run(scene.one, calls, until=CUT)
    for name in calls:
        pin = scene.one.pin(name)
        blocks = scene.one.export(pin)
        scene.one.cancel(name)
        scene.one.release(pin)
        scene.two.import_(blocks)
    scene.ask(scene.two, calls)
    scene.run(scene.two, calls)
    return scene.differences(calls)


def reloaded(scene: Scene) -> Tensor:
    """New weights in the middle; each token is compared under the weights that sampled it."""
    calls = scene.calls()
    scene.ask(scene.one, calls)
    scene.run(scene.one, calls, until=CUT)
    old = {name: one.detach().clone() for name, one in scene.network.module.named_parameters()}
    torch.manual_seed(1)
    new = {name: one + 0.02 * one.std() * torch.randn_like(one) for name, one in old.items()}
    before = scene.one.version
    scene.one.load(new, version=before + 1)
    scene.run(scene.one, calls)
    later = scene.differences(calls, before + 1)
    scene.one.load(old, version=before)
    return torch.cat([scene.differences(calls, before), later])


def long_prefix(scene: Scene, num_prompt: int) -> Tensor:
    """Prompts that take many passes to compute, asked twice so that the second finds them."""
    calls = scene.calls(num_prompt)
    for _ in range(2):
        for call in calls.values():
            call.ids, call.logprobs, call.versions = [], [], []
        scene.ask(scene.two, calls)
        scene.run(scene.two, calls)
    return scene.differences(calls)


def measure(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample per scene; every run has other prompts."""
    scene = Scene(Network(qwen3()), num_calls=16, num_prompt=8192)
    for _ in range(runs):
        for name, difference in (
            ("plain", plain(scene)),
            ("continued", continued(scene)),
            ("keys and values moved", moved(scene)),
            ("weights reloaded", reloaded(scene)),
            ("long prefix", long_prefix(scene, 8192)),
        ):
            yield (
                name,
                {
                    "tokens": len(difference),
                    "max": float(difference.abs().max()),
                    "mean": float(difference.abs().mean()),
                    "bias": float(difference.mean()),
                },
            )
