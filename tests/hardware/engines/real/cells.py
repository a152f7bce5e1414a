"""Real servers as cells open them, with two sets of weights of one real model."""

import asyncio
import itertools
import os
import re
import signal
import sys
from array import array
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from tests.contracts import controllable_engine as steered_suite
from tests.contracts import engine as engine_suite

from gyre.config.sections import EngineConfig, ServerConfig
from gyre.inference.clients.http import client
from gyre.inference.engine.kv_cache import kv_bytes_per_token
from gyre.inference.external.process import ServerSettings
from gyre.inference.external.registry import ServerLaunch, open_served, private_folder
from gyre.model.checkpoint import save
from gyre.model.loader import load_network
from gyre.model.network import Network
from gyre.renderers.registry import load_renderer
from gyre.types.conversation import Message
from gyre.types.sampling import GenerateRequest, SamplingParams
from real import installed
from real.server import RECIPES, Kind

START_S = 900.0
PATIENCE_S = 900.0
"""No promise waits this long; a machine that is busy with other things may."""
CPU = torch.device("cpu")
KV_TOKENS = 8192
MOST_TOKENS = 20
LONG = 1500
"""Tokens that take the model half a minute."""
NEAR = 2e-3
"""Largest difference of two log-probabilities, in nats, between two fp32 implementations."""
SAID = {
    "count": "Count from one to ten.",
    "say hello": "What is the capital of France?",
    "run out": "Tell me a long story about a fox and a river.",
}
T = TypeVar("T")


def load(folder: Path) -> Network:
    return load_network(str(folder), device=CPU, dtype=torch.float32)


def write_weights(place: Path) -> None:
    """The model as a checkpoint of ours, and one whose keys and outputs are others."""
    network = load(installed.model())
    save(network, place / "first", version=1)
    with torch.no_grad():
        for name, one in network.module.named_parameters():
            if "k_proj" in name or "down_proj" in name:
                one.mul_(0.8)
    save(network, place / "second", version=2)


class CellServer:
    """One server behind the orders of a cell, in an event loop of its own."""

    def __init__(self, release: str, weights: Path) -> None:
        """Returns once the server answers; a release is an environment of scripts/engines."""
        self.release = release
        self.kind: Kind = "vllm" if release == "vllm" else "sglang"
        self.weights = weights
        self._runner = asyncio.Runner()
        self.networks = {name: load(weights / name) for name in ("first", "second")}
        self.expected: dict[Any, engine_suite.Expected] = {}
        """What was asked before, with its answer, because it takes long to compute."""
        self.renderer = load_renderer(str(installed.model()))
        recipe = RECIPES[self.kind]
        self.wanted = ServerSettings(
            model=weights / "first",
            version=1,
            dtype="float32",
            device="cpu",
            seed=7,
            kv_token_bytes=kv_bytes_per_token(self.networks["first"].shape, torch.float32),
            engine=EngineConfig(capacity=8, kv_tokens=KV_TOKENS),
            server=ServerConfig(
                python=str(installed.python(release)),
                args=recipe.arguments,
                env=recipe.environment,
                start_s=START_S,
                weights="memory",
            ),
            folder=private_folder(),
            python=sys.executable,
        )
        opening = ServerLaunch(name=self.kind, kind=self.kind, wanted=self.wanted)
        self.engine = self.run(open_served(opening, load(weights / "first")), START_S)

    def run(self, doing: "Coroutine[Any, Any, T]", within_s: float = PATIENCE_S) -> T:
        async def scenario() -> T:
            async with asyncio.timeout(within_s):
                return await doing

        return self._runner.run(scenario())

    def prompt(self, said: str) -> list[int]:
        ids: list[int] = self.renderer.render([Message(role="user", text=said)], []).ids
        return ids

    async def num_running(self) -> int:
        """Requests it has, as its own gauges say."""
        names = tuple(f"{name}{{" for name in RECIPES[self.kind].running)
        lines = (await self._metrics()).splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(names)))

    async def _metrics(self) -> str:
        if self.kind == "vllm":
            socket, key, url = self.wanted.folder / "vllm", None, "http://localhost"
        else:
            told = (self.wanted.folder / "sglang.yaml").read_text()
            found = re.search(r'api-key: "(.+)"\nport: (\d+)', told)
            assert found is not None
            socket, key, url = None, found[1], f"http://127.0.0.1:{found[2]}"
        async with (
            client(socket_path=socket, key=key) as session,
            session.get(f"{url}/metrics/", allow_redirects=True) as answer,
        ):
            return await answer.text()

    def kill(self) -> None:
        """SIGKILL for all processes of the server, as a machine that loses memory."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            if str(self.wanted.folder) in path.read_text():
                os.killpg(int(path.parent.name), signal.SIGKILL)
                return
        raise AssertionError("no process of the server")

    def close(self) -> None:
        self.run(self.engine.close())
        self._runner.close()


class AsEngine:
    """Greedy answers, known from a forward pass over the whole text for every token."""

    says_version = True
    tolerance = NEAR
    _numbers = itertools.count(1)

    def __init__(self, server: CellServer) -> None:
        self._server = server
        self.engine = server.engine
        self.model = str(server.wanted.model)

    def ask(
        self, said: str, *, sampled: Sequence[int] = (), max_tokens: int = 1000
    ) -> GenerateRequest:
        stops = said == "say hello"
        most = min(max_tokens, 2 * MOST_TOKENS if stops else MOST_TOKENS)
        ids = [*self._server.prompt(SAID[said]), *sampled]
        stop_ids = self._server.renderer.stop_ids if stops else ()
        return self._ask(ids, max_tokens=most - len(sampled), stop_ids=stop_ids)

    def expected(self, asked: GenerateRequest) -> engine_suite.Expected:
        key = (asked.input_ids, asked.sampling)
        known = self._server.expected
        if key not in known:
            known[key] = self._computed(asked)
        return known[key]

    async def endless(self) -> GenerateRequest:
        return self._ask(self._server.prompt(SAID["count"]), max_tokens=LONG, stop_ids=())

    async def load(self, version: int) -> None:
        await self.engine.load(self._server.weights / "first", version=version)

    async def wait_aborted(self, count: int) -> None:
        while await self._server.num_running():
            await asyncio.sleep(0.1)

    def _ask(self, ids: Sequence[int], **sampling: Any) -> GenerateRequest:
        return GenerateRequest(
            id=f"engine-{next(self._numbers):06}",
            input_ids=array("i", ids).tobytes(),
            sampling=SamplingParams(temperature=0.0, **sampling),
            execution="e",
        )

    def _computed(self, asked: GenerateRequest) -> engine_suite.Expected:
        network, sampling = self._server.networks["first"], asked.sampling
        prompt = array("i", asked.input_ids).tolist()
        ids: list[int] = []
        finish = "length"
        while len(ids) < sampling.max_tokens and finish == "length":
            ids.append(steered_suite.likeliest(network, [*prompt, *ids]))
            finish = "stop" if ids[-1] in sampling.stop_ids else "length"
        logprobs = steered_suite.reference(network, prompt, ids)
        return engine_suite.Expected(ids, logprobs, finish)


class AsSteered:
    """What it says at temperature 1, judged by forward passes of both sets of weights."""

    tolerance = NEAR
    long_tokens = LONG
    _numbers = itertools.count(1)

    def __init__(self, server: CellServer, weights: Literal["disk", "memory"]) -> None:
        self._server = server
        self.engine = server.engine
        self.engine.weights = weights

    def ask(self, *, max_tokens: int) -> GenerateRequest:
        return GenerateRequest(
            id=f"steered-{next(self._numbers):06}",
            input_ids=array("i", self._server.prompt(SAID["count"])).tobytes(),
            sampling=SamplingParams(max_tokens=max_tokens),
            execution="e",
        )

    def folder(self, which: Literal["first", "second"]) -> Path:
        return self._server.weights / which

    def logprobs(self, which: str, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
        return steered_suite.reference(self._server.networks[which], prompt, output)
