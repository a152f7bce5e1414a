"""How long the simulator itself takes: a paper's run, and a large one, with its memory."""

import argparse
import os
import resource
import time
from dataclasses import replace

from benchmarks.sim.paper import write

from gyre.sim.paper import NL2REPO, compared
from gyre.sim.scenario import Scenario
from gyre.sim.world import run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    cases = {"48 steps": (_paper(), args.runs), "512 cells": (_large(), 1)}
    samples = {}
    for name, (scenario, runs) in cases.items():
        samples[name] = [_timed(scenario) for _ in range(runs)]
        print(name, samples[name], flush=True)
    settings = {"runs": args.runs}
    write("sim-scale", samples, settings=settings, load_before=load_before, dry=args.dry)


def _paper() -> Scenario:
    return compared(NL2REPO, staleness=1.5)["gyre"]


def _large() -> Scenario:
    """Sixty-four times the cells, and twelve steps of 512 groups of 16."""
    one = _paper()
    shape = replace(one.shape, num_cells=512, groups_per_batch=512, cell_capacity=36, steps=12)
    return replace(one, shape=shape, nodes_per_cell=1.0, executions_per_claim=4)


def _timed(scenario: Scenario) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    record = run(scenario)
    return {
        "seconds": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "calls": 1,
        "executions": record.counts.executions_launched,
        "events": record.counts.events,
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
