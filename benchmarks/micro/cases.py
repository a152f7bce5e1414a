"""Times cases in turns, in CPU seconds of this process, and writes a result file."""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from benchmarks.peers import results
from benchmarks.peers.contestants import OWN

Result = TypeVar("Result")
Sample = dict[str, float]
PACKAGES = ("msgspec", "numpy", "orjson", "renderers", "tokenizers", "xxhash")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    return parser.parse_args()


def measure(
    name: str,
    cases: Mapping[str, Callable[[], object]],
    *,
    calls: Mapping[str, int],
    settings: Mapping[str, object],
) -> None:
    """Every case is called once unmeasured, then in turns with the others."""
    args = arguments()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[Sample]] = {case: [] for case in cases}
    for work in cases.values():
        work()
    for _ in range(args.runs):
        for case, work in cases.items():
            clock = Clock()
            for _ in range(calls[case]):
                clock.time(work)
            samples[case].append(clock.sample)
    finish(name, samples, settings=settings, args=args, load_before=load_before)


class Clock:
    """CPU and wall seconds of the calls it is given."""

    def __init__(self) -> None:
        self._calls = 0
        self._cpu_s = 0.0
        self._wall_s = 0.0

    def time(self, work: Callable[[], Result]) -> Result:
        before, began = time.process_time(), time.perf_counter()
        done = work()
        self._cpu_s += time.process_time() - before
        self._wall_s += time.perf_counter() - began
        self._calls += 1
        return done

    @property
    def sample(self) -> Sample:
        return {
            "calls": self._calls,
            "cpu_s": round(self._cpu_s, 7),
            "wall_s": round(self._wall_s, 7),
        }


def finish(
    name: str,
    samples: Mapping[str, list[Sample]],
    *,
    settings: Mapping[str, object],
    args: argparse.Namespace,
    load_before: float,
) -> None:
    """Prints the samples, and writes them unless the run is dry."""
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
