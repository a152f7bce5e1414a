"""Times cases in turns, in CPU seconds of this process, and writes a result file."""

import argparse
import os
import time
from collections.abc import Callable, Mapping

from benchmarks.peers import results
from benchmarks.peers.contestants import OWN

PACKAGES = ("msgspec", "numpy", "orjson", "renderers", "tokenizers", "xxhash")


def measure(
    name: str,
    cases: Mapping[str, Callable[[], object]],
    *,
    calls: Mapping[str, int],
    settings: Mapping[str, object],
) -> None:
    """Every case is called once unmeasured, then in turns with the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for work in cases.values():
        work()
    for _ in range(args.runs):
        for case, work in cases.items():
            before, began = time.process_time(), time.perf_counter()
            for _ in range(calls[case]):
                work()
            cpu_s = time.process_time() - before
            wall_s = time.perf_counter() - began
            sample = {"calls": calls[case], "cpu_s": round(cpu_s, 7), "wall_s": round(wall_s, 7)}
            samples[case].append(sample)
    for case, runs in samples.items():
        best = min(run["cpu_s"] / run["calls"] for run in runs)
        print(f"{name} {case}: {1000 * best:.4f} CPU ms at best")
    if args.dry:
        return
    path = results.write(
        name,
        samples=samples,
        settings={"runs": args.runs, **settings},
        packages=results.versions({"gyre": (OWN, PACKAGES)}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)
