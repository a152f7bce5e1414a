"""Times switches, joins, hand-offs and publications: python -m benchmarks.gpu.moves.measure.

With --kept every sample is in that file as it comes, and a size that a call before has measured
whole is not measured again.
"""

import argparse
import asyncio
import gc
import os
import shutil
import tempfile
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from benchmarks.gpu.moves import floors
from benchmarks.gpu.moves.cells import MEMORY, Scene, pair
from benchmarks.gpu.moves.handing import Hands
from benchmarks.gpu.moves.mps import together
from benchmarks.gpu.moves.sizes import SIZES, made
from benchmarks.gpu.moves.switching import Switches
from benchmarks.gpu.moves.ways import Bytes, floor_s
from benchmarks.live.running import Kept, end_when_told
from benchmarks.peers import results

Sample = tuple[str, dict[str, Any]]
Samples = dict[str, list[dict[str, Any]]]
SETTINGS = {
    "cells": "a core and a satellite, both `python -m gyre.cell.main`, on one GPU",
    "first": "the first burst of a process, which makes buffers for copies",
    "to training": "the engine rests, the trainer is restored; a satellite pulls weights",
    "to rollout": "the trainer rests, the engine wakes; called home early it loads weights",
    "first calls": "one after the other at both engines, which make their graphs again",
    "hand-off": "pin, put and take, until the destination's first token",
    "prefill": "the same length computed by the destination, until its first token",
    "publication": "weights durable on the disk, and loaded and digested by both engines",
    "floor_s": "the copies alone, at the speeds found in the same run",
    "paper": {"to training": 8.52, "to rollout": 3.46},
    "not measured": "the end of a claim in hand, and reroutes: both depend on the workload",
}
SPEEDS = "bytes per second"
PREFIXES = (8_192, 32_768)
WARM_TOKENS = (300, 300)
"""Twice: the second call finds everything compiled."""


async def of_size(name: str, work: Path, asked: argparse.Namespace) -> AsyncIterator[Sample]:
    """All samples of one size, as they come."""
    folder = work / name
    model = Path(tempfile.mkdtemp(prefix="moves-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        sizes = made(name, model / "model", device=asked.device)
        gc.collect()
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        yield "sizes", sizes
        scene = Scene(
            model=model / "model",
            folder=folder,
            device=asked.device,
            kv_tokens=asked.kv_tokens,
            transport=asked.transport,
        )
        async with pair(scene) as both:
            yield "start", {"seconds": both.start_s}
            executor = Hands(both, sizes["vocabulary"])
            for num_tokens in WARM_TOKENS:
                yield "warm", {"seconds": await executor.warm(num_tokens)}
            for num_tokens in asked.prefixes:
                for run in range(asked.runs + 1):
                    which = "again" if run else "first"
                    async for sample in executor.compared(num_tokens, which):
                        yield sample
            switches = Switches(both, folder / "checkpoints")
            for run in range(asked.runs + 1):
                which = "again" if run else "first"
                async for sample in switches.burst(which):
                    yield sample
                yield (
                    f"first calls, {which}",
                    {"seconds": await executor.warm(WARM_TOKENS[0])},
                )
            for _ in range(asked.runs):
                async for sample in switches.called_home("again"):
                    yield sample
    finally:
        shutil.rmtree(model, ignore_errors=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


async def measured(asked: argparse.Namespace, work: Path, samples: Samples, kept: Kept) -> bool:
    """Whether every size came to its end; what failed is told, and the others go on."""
    whole = True
    for name in asked.sizes:
        part = kept.part(name)
        if (before := part.samples()) is not None:
            for what, sample in before:
                samples[f"{name}: {what}"].append(sample)
            continue
        began = perf_counter()
        try:
            async with asyncio.timeout(asked.size_s):
                async for what, sample in of_size(name, work, asked):
                    samples[f"{name}: {what}"].append(sample)
                    _note_floor(what, sample, samples[f"{name}: sizes"][0], samples, asked)
                    part.add(what, sample)
                    _print(f"{name}: {what}", sample)
            part.end()
        except Exception:
            # The others are measured all the same: time on a device is dear.
            traceback.print_exc(limit=-6)
            whole = False
            for log in sorted((work / name).glob("*.log")):
                print(f"{log.name}: {log.read_text()[-1500:]}", flush=True)
        print(f"{name}: {perf_counter() - began:.1f} s in all", flush=True)
    return whole


def _floors(kept: Kept, work: Path, *, scale: int) -> dict[str, float]:
    """The same for all sizes of one result."""
    part = kept.part(SPEEDS)
    if (before := part.samples()) is not None:
        return before[0][1]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as share:
        found = floors.measure(work, Path(share), scale=scale)
    part.add(SPEEDS, found)
    part.end()
    return found


def _note_floor(
    what: str,
    sample: dict[str, Any],
    sizes: Bytes,
    samples: Samples,
    asked: argparse.Namespace,
) -> None:
    """Beside what it took, what the copies alone would take at the speeds of this run."""
    speeds = samples[SPEEDS][0]
    carried = sample.get("bytes", 0)
    floor = floor_s(what, sizes, speeds, carried, lent=asked.transport == "cuda")
    if floor is not None:
        sample["floor_s"] = floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES][1:])
    parser.add_argument("--prefixes", nargs="+", type=int, default=PREFIXES)
    parser.add_argument("--runs", type=int, default=3, help="after the first")
    parser.add_argument("--kv-tokens", type=int, default=262_144)
    parser.add_argument("--size-s", type=float, default=120.0, help="most seconds for one size")
    parser.add_argument("--transport", choices=("shared", "cuda"), default="cuda")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    asked = parser.parse_args()
    end_when_told()
    samples: Samples = defaultdict(list)
    before = os.getloadavg()[0]
    on_gpu = asked.device == "cuda"
    same = ("prefixes", "runs", "kv_tokens", "transport", "device")
    kept = Kept(asked.kept, {name: getattr(asked, name) for name in same})
    with tempfile.TemporaryDirectory(prefix="moves-") as work, together() as has_mps:
        floor = _floors(kept, Path(work), scale=1 if on_gpu else 64)
        samples[SPEEDS].append(floor)
        _print(SPEEDS, floor)
        try:
            whole = asyncio.run(measured(asked, Path(work), samples, kept))
        finally:
            # Whatever ends it, what was measured until then is kept.
            if not asked.dry:
                _write(asked, samples, has_mps, before)
    if not whole:
        raise SystemExit("not everything was measured")


def _write(asked: argparse.Namespace, samples: Samples, has_mps: bool, before: float) -> None:
    on_gpu = asked.device == "cuda"
    about = {"mps": has_mps, "kv_tokens": asked.kv_tokens, "transport": asked.transport}
    path = results.write(
        "gpu-moves" if on_gpu else "cpu-moves",
        samples=samples,
        settings=SETTINGS | about,
        packages={"gyre": {one: version(one) for one in ("torch", "transformers")}},
        load_average=(before, os.getloadavg()[0]),
        device=torch.cuda.get_device_name() if on_gpu else None,
        commit=asked.commit,
    )
    print(f"wrote {path.name}", flush=True)


def _print(what: str, sample: dict[str, Any]) -> None:
    print(what, {key: _rounded(value) for key, value in sample.items()}, flush=True)


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
