"""Measures the model plane on one GPU and writes results: python -m benchmarks.gpu.measure.

With --kept every sample is in that file as it comes, and what a call before has measured whole is
not measured again.
"""

import argparse
import gc
import os
import traceback
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from benchmarks.gpu import agree, generate, step, switch, trees
from benchmarks.gpu.covered import digest
from benchmarks.live.running import Kept
from benchmarks.peers import results

MEASURES: dict[str, ModuleType] = {
    "gpu-agree": agree,
    "gpu-generate": generate,
    "gpu-step": step,
    "gpu-trees": trees,
    "gpu-switch": switch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    asked = parser.parse_args()
    if unknown := sorted({*asked.names} - {*MEASURES}):
        parser.error(f"{', '.join(unknown)}: expected {' or '.join(MEASURES)}")
    kept = Kept(asked.kept, {"runs": asked.runs})
    failed = []
    for name in asked.names or MEASURES:
        if kept.part(name).samples() is not None:
            print(f"{name}: measured before", flush=True)
            continue
        try:
            _measure(name, asked.runs, asked.commit, kept)
        except Exception:
            # The others are measured all the same: time on a device is dear.
            traceback.print_exc(limit=-6)
            failed.append(name)
        gc.collect()
        torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def _measure(name: str, runs: int, commit: str | None, kept: Kept) -> None:
    samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
    before = os.getloadavg()[0]
    module, part = MEASURES[name], kept.part(name)
    for contestant, sample in module.measure(runs):
        samples[contestant].append(sample)
        part.add(contestant, sample)
        print(f"{name}: {contestant}: {sample}", flush=True)
    path = results.write(
        name,
        samples=samples,
        settings={"covers": digest(), **module.SETTINGS},
        packages={"gyre": {one: version(one) for one in ("torch", "transformers")}},
        load_average=(before, os.getloadavg()[0]),
        device=torch.cuda.get_device_name(),
        commit=commit,
    )
    part.end()
    print(f"{name}: wrote {path.name}", flush=True)


if __name__ == "__main__":
    main()
