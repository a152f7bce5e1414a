"""Measures the model plane on one GPU and writes results: python -m benchmarks.gpu.measure."""

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import ModuleType
from typing import Any

import torch
from benchmarks.gpu import agree, generate, step, switch, trees
from benchmarks.gpu.covered import digest
from benchmarks.peers import results

MEASURES: dict[str, ModuleType] = {
    "gpu-agree": agree,
    "gpu-generate": generate,
    "gpu-step": step,
    "gpu-trees": trees,
    "gpu-switch": switch,
}
Measure = Callable[[int], Iterator[tuple[str, dict[str, Any]]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    asked = parser.parse_args()
    for name in asked.names or MEASURES:
        samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
        before = os.getloadavg()[0]
        module = MEASURES[name]
        for contestant, sample in module.measure(asked.runs):
            samples[contestant].append(sample)
            print(f"{name}: {contestant}: {sample}", flush=True)
        path = results.write(
            name,
            samples=samples,
            settings={"covers": digest(), **module.SETTINGS},
            packages={"gyre": {one: version(one) for one in ("torch", "transformers")}},
            load_average=(before, os.getloadavg()[0]),
            device=torch.cuda.get_device_name(),
            commit=asked.commit,
        )
        print(f"{name}: wrote {path.name}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
