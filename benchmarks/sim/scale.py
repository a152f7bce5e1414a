"""How long the simulator itself takes: a paper's run, and larger ones, with their memory."""

import argparse
import os
import resource
import time
from dataclasses import replace

from benchmarks.sim.paper import write

from gyre.simulator.paper import NL2REPO, compared
from gyre.simulator.scenario import Scenario
from gyre.simulator.world import run

CELLS = (64, 512, 1_024)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    cases = {
        "48 steps": (_paper(), args.runs),
        # Ascending, because memory is the most that the process ever had.
        **{f"{cells} cells": (_large(cells), args.runs if cells < 512 else 1) for cells in CELLS},
    }
    samples = {}
    for name, (scenario, runs) in cases.items():
        samples[name] = [_timed(scenario) for _ in range(runs)]
        print(name, samples[name], flush=True)
    settings = {"runs": args.runs}
    write("sim-scale", samples, settings=settings, load_before=load_before, dry=args.dry)


def _paper() -> Scenario:
    return compared(NL2REPO, staleness=1.5)["gyre"]


def _large(cells: int) -> Scenario:
    """So many cells, and twelve steps of as many groups of 16."""
    one = _paper()
    shape = replace(one.shape, num_cells=cells, groups_per_batch=cells, cell_capacity=36, steps=12)
    return replace(one, shape=shape, nodes_per_cell=1.0, executions_per_claim=4)


def _timed(scenario: Scenario) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    record = run(scenario)
    seconds, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "seconds": round(seconds, 3),
        "cpu_s": round(cpu_s, 3),
        "calls": 1,
        "executions": record.counts.executions_launched,
        "events": record.counts.events,
        "events_per_cpu_s": round(record.counts.events / cpu_s),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
