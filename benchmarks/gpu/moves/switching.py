"""Cells enter training, step, go home and publish, each order timed as a run's controller does."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu.moves.cells import CORE, SATELLITE, Pair

from gyre.cell.client import CellClient
from gyre.model.checkpoint_store import name_of

Sample = tuple[str, dict[str, Any]]


class Switches:
    """One burst after the other, as elastic training has them: the core first, then a satellite."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self._core = pair.cells[CORE]
        self._satellite = pair.cells[SATELLITE]
        self._folder = folder
        self._version = 0

    async def burst(self, which: str) -> AsyncIterator[Sample]:
        """Core and satellite enter, the core steps, both go home, and all engines are published to.

        `which` is what the samples are called after: the first burst pins host memory.
        """
        yield f"to training, core, {which}", await self._core_enters()
        yield f"to training, satellite, {which}", await self._satellite_joins()
        began = perf_counter()
        report = await self._core.step(self._version)
        self._version = report.version
        yield f"step, {which}", {"seconds": perf_counter() - began, "update": report.step_s}
        for name, cell in (("core", self._core), ("satellite", self._satellite)):
            yield f"to rollout, {name}, {which}", await _leaves(cell)
        yield f"publication, {which}", await self._publishes()

    async def called_home(self, which: str) -> AsyncIterator[Sample]:
        """A satellite that joined is called back before the burst is over, and loads weights."""
        await self._core_enters()
        yield f"to training, satellite again, {which}", await self._satellite_joins()
        began = perf_counter()
        phases = await self._satellite.leave(keep_sum=False)
        loading = perf_counter()
        await self._satellite.load(self._published, version=self._version, digest=self._digest)
        phases["load"] = perf_counter() - loading
        seconds = perf_counter() - began
        yield f"to rollout, satellite with weights, {which}", {"seconds": seconds} | phases
        await _leaves(self._core)

    async def _core_enters(self) -> dict[str, float]:
        began = perf_counter()
        phases = await self._core.enter()
        return {"seconds": perf_counter() - began} | phases

    async def _satellite_joins(self) -> dict[str, float]:
        """Until it could take its first claim; the exposure is made once for each version."""
        began = perf_counter()
        phases = await self._satellite.enter()
        exposing = perf_counter()
        exposed = await self._core.expose()
        phases["expose"] = perf_counter() - exposing
        pulling = perf_counter()
        await self._satellite.pull(exposed)
        phases["pull"] = perf_counter() - pulling
        return {"seconds": perf_counter() - began, "bytes": exposed.num_bytes} | phases

    async def _publishes(self) -> dict[str, float]:
        """Durable weights, then every engine has acknowledged their digest."""
        before, self._published = getattr(self, "_published", None), self._path(self._version)
        began = perf_counter()
        saved = await self._core.save(self._published, version=self._version)
        self._digest = saved.digest
        loading = perf_counter()
        cells: list[CellClient] = [self._core, self._satellite]
        loaded = await asyncio.gather(
            *(
                one.load(self._published, version=self._version, digest=saved.digest)
                for one in cells
            )
        )
        done = perf_counter()
        if before is not None:
            shutil.rmtree(before)
        return {
            "seconds": done - began,
            "save": saved.seconds,
            "copy": saved.copied_s,
            "load": done - loading,
            "load without digest": max(one.seconds for one in loaded),
            "bytes": saved.num_bytes,
        }

    def _path(self, version: int) -> Path:
        return self._folder / name_of(version)


async def _leaves(cell: CellClient) -> dict[str, float]:
    began = perf_counter()
    phases = await cell.leave(keep_sum=False)
    return {"seconds": perf_counter() - began} | phases
