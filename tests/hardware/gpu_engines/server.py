"""SGLang as a cell opens it on a GPU, from the folder that scripts/engines_gpu unpacked."""

import asyncio
import os
import random
import sys
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from real import cells
from tests.contracts import controllable_engine as steered_suite

from gyre.config.sections import EngineConfig, ServerConfig
from gyre.inference.engine.kv_cache import kv_bytes_per_token
from gyre.inference.external.process import ServerSettings
from gyre.inference.external.registry import ServerLaunch, open_served, private_folder
from gyre.model.loader import load_network

START_S = 150.0
PATIENCE_S = 45.0
NEAR = 0.15
"""Largest difference of two log-probabilities, in nats, between bfloat16 there and float32 here."""
CONTEXT = 16384
KV_TOKENS = 2**20
LONG = 12_000
"""More than it samples before an order reaches it."""
PROMPT_TOKENS = 24
STOPS_AFTER = 10
ARGUMENTS = (
    *("--attention-backend", "triton", "--sampling-backend", "pytorch"),
    # Graphs of prompts would be compiled first.
    *("--disable-prefill-cuda-graph", "--mm-feature-transport", "cpu"),
    *("--context-length", str(CONTEXT), "--mem-fraction-static", "0.5"),
    # Its gauges are written when it logs, so it logs every step.
    *("--enable-metrics", "--decode-log-interval", "1"),
)
T = TypeVar("T")


def environment(folder: Path) -> dict[str, str]:
    """The folder in front, its kernels, and CUDA's runtime for what is loaded before torch."""
    runtime = "/usr/local/cuda/lib64"
    found = find_spec("nvidia")
    places = [] if found is None else list(found.submodule_search_locations or ())
    libraries = [str(Path(one) / "cu13" / "lib") for one in places]
    return {
        "PYTHONPATH": str(folder),
        "TVM_FFI_CACHE_DIR": str(folder / "kernels"),
        "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
        "LD_LIBRARY_PATH": os.pathsep.join(
            [*libraries, runtime, os.environ.get("LD_LIBRARY_PATH", "")]
        ).rstrip(os.pathsep),
    }


class GpuServer(cells.CellServer):
    """One server on the GPU, and what its weights make it say."""

    def __init__(self, release: str, folder: Path, weights: Path) -> None:
        """Returns once the server answers."""
        self.release, self.kind, self.weights = release, "sglang", weights
        self._runner = asyncio.Runner()
        self.networks = {name: cells.load(weights / name) for name in ("first", "second")}
        self.expected = {}
        self.wanted = ServerSettings(
            model=weights / "first",
            version=1,
            dtype="bfloat16",
            device="cuda",
            seed=7,
            kv_token_bytes=kv_bytes_per_token(self.networks["first"].shape, torch.bfloat16),
            engine=EngineConfig(capacity=8, kv_tokens=KV_TOKENS),
            server=ServerConfig(
                args=ARGUMENTS, env=environment(folder), start_s=START_S, weights="memory"
            ),
            folder=private_folder(),
            python=sys.executable,
        )
        self.renderer = SimpleNamespace(stop_ids=(self._late_token(),))
        opening = ServerLaunch(name=self.kind, kind=self.kind, wanted=self.wanted)
        own = load_network(str(weights / "first"), dtype=torch.bfloat16)
        self.engine = self.run(open_served(opening, own), START_S + 10)

    def run(self, doing: "Coroutine[Any, Any, T]", within_s: float = PATIENCE_S) -> T:
        return super().run(doing, within_s)

    def prompt(self, said: str) -> list[int]:
        """Any tokens do, as long as they are always the same."""
        return random.Random(said).choices(range(256), k=PROMPT_TOKENS)

    def _late_token(self) -> int:
        """The one that a greedy answer to "say hello" has there, and not before."""
        ids = self.prompt(cells.SAID["say hello"])
        for _ in range(STOPS_AFTER):
            ids.append(steered_suite.likeliest(self.networks["first"], ids))
        assert ids[-1] not in ids[PROMPT_TOKENS:-1], "the plan comes back too soon"
        return ids[-1]


class AsEngine(cells.AsEngine):
    """As on a CPU, in half precision."""

    tolerance = NEAR


class AsSteered(cells.AsSteered):
    """As on a CPU, in half precision and much faster."""

    tolerance = NEAR
    long_tokens = LONG
