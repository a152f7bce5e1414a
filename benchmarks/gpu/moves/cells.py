"""Real cells on one device, started with plans and asked as a controller and a proxy ask them."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import aiohttp

from gyre.cell.client import CellClient
from gyre.cell.spec import CellSpec
from gyre.cluster.process import SpawnedProcess
from gyre.config.sections import (
    EngineConfig,
    LimitsConfig,
    LossConfig,
    OptimizerConfig,
    TrainerConfig,
    TransportConfig,
)
from gyre.inference.clients.sglang import GyreEngine
from gyre.storage.files import write_plan
from gyre.types.ids import EngineName

CORE, SATELLITE = 0, 1
MEMORY = Path("/dev/shm")
"""Where cells of a machine share weights and blocks."""
READY_S = 180.0
ORDER_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A core and a satellite, home and serving; each can be ordered, and asked for tokens."""

    cells: dict[int, CellClient]
    engines: dict[int, GyreEngine]
    start_s: float
    """From the first process to the last that was ready, imports included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the two cells are given."""

    model: Path
    folder: Path
    """For plans, logs and the key."""
    device: str
    kv_tokens: int
    transport: Literal["shared", "cuda"] = "shared"
    prefill_tokens: int = 4_096


def plan(scene: Scene, share: Path, cell: int) -> CellSpec:
    on_gpu = scene.device == "cuda"
    return CellSpec(
        name=f"cell-{cell}",
        cell=cell,
        trains=True,
        model=str(scene.model),
        version=0,
        device=scene.device,
        dtype="bfloat16" if on_gpu else "float32",
        seed=cell,
        temperature=1.0,
        threads=None if on_gpu else 1,
        key_file=scene.folder / "token",
        share=share,
        store=share / "store",
        timeout_s=ORDER_S,
        engine=EngineConfig(
            capacity=8, kv_tokens=scene.kv_tokens, prefill_tokens=scene.prefill_tokens
        ),
        trainer=TrainerConfig(),
        objective=LossConfig(),
        optimizer=OptimizerConfig() if cell == CORE else None,
        limits=LimitsConfig(),
        transport=TransportConfig(kind=scene.transport),
    )


@asynccontextmanager
async def pair(scene: Scene) -> AsyncIterator[Pair]:
    """Both cells, until the context ends; what they share lies in memory, as a run's does."""
    scene.folder.mkdir(parents=True, exist_ok=True)
    key = secrets.token_hex(16)
    (scene.folder / "token").write_text(key)
    share = Path(tempfile.mkdtemp(prefix="moves-", dir=MEMORY if MEMORY.is_dir() else None))
    processes: list[SpawnedProcess] = []
    began = perf_counter()
    try:
        for cell in (CORE, SATELLITE):
            path = write_plan(scene.folder / f"{cell}.json", plan(scene, share, cell))
            log = scene.folder / f"{cell}.log"
            arguments = ["-m", "gyre.cell.main", str(path)]
            processes.append(await SpawnedProcess.start(f"cell-{cell}", arguments, log))
        urls = await asyncio.gather(*(one.ready(READY_S) for one in processes))
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            both = Pair(
                cells={
                    cell: CellClient(cell, url, session, order_s=ORDER_S)
                    for cell, url in enumerate(urls)
                },
                engines={
                    cell: GyreEngine(EngineName(f"cell-{cell}"), url, session)
                    for cell, url in enumerate(urls)
                },
                start_s=perf_counter() - began,
            )
            try:
                yield both
            finally:
                # What they still have to say to their engines goes by this session.
                await asyncio.gather(*(one.close() for one in both.engines.values()))
    finally:
        await asyncio.gather(*(one.stop() for one in processes))
        shutil.rmtree(share, ignore_errors=True)
