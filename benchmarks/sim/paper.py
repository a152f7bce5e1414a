"""The paper's runs in the simulator: two numbers fitted to four rows, the other rows predicted."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import results
from benchmarks.sim.calibrate import DRIFT, TRAINING_RATE, fit, over_seeds

from gyre.simulator.paper import (
    ABLATION_H,
    DEEPSWE,
    FITTED,
    NL2REPO,
    NL2REPO_MAX,
    TABLE,
    TERMINALBENCH,
    compared,
)
from gyre.simulator.result import SimulationResult
from gyre.simulator.scenario import Scenario

FIT_SEEDS = range(100, 104)
"""None of the seeds that the table is made with."""
PACKAGES = ("numpy",)

Sample = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--long-seeds", type=int, default=5, help="of runs over 24 or 48 steps")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples = {name: _runs(one, range(args.seeds)) for name, one in TABLE.items()}
    for scenario in _long().values():
        samples[scenario.name] = _runs(scenario, range(args.long_seeds))
    found = fit(
        {name: TABLE[name] for name in FITTED},
        ABLATION_H,
        parameters=(TRAINING_RATE, DRIFT),
        seeds=FIT_SEEDS,
    )
    print(found)
    settings = {
        "seeds": args.seeds,
        "long_seeds": args.long_seeds,
        "fitted_rows": FITTED,
        "fit_seeds": list(FIT_SEEDS),
        "fit": dict(found.values),
        "fitted_error": found.fitted_error,
        "tried": found.num_tried,
    }
    write("sim-paper", samples, settings=settings, load_before=load_before, dry=args.dry)


def _long() -> dict[str, Scenario]:
    settings = [
        (NL2REPO, 1.0),
        (NL2REPO, 1.5),
        (NL2REPO_MAX, 1.5),
        (DEEPSWE, 1.0),
        (DEEPSWE, 1.5),
        (TERMINALBENCH, 1.0),
        (TERMINALBENCH, 1.5),
    ]
    return {
        one.name: replace(one, executions_per_claim=4)
        for setting, staleness in settings
        for one in compared(setting, staleness=staleness).values()
    }


def _runs(scenario: Scenario, seeds: Sequence[int]) -> list[Sample]:
    runs = [sample(record) for record in over_seeds(scenario, seeds)]
    print(f"{scenario.name}: {sum(one['hours'] for one in runs) / len(runs):.2f} h", flush=True)
    return runs


def sample(record: SimulationResult) -> Sample:
    """What one run is judged by."""
    assert record.identity_holds
    assert record.staleness.mean is not None
    return {
        "seed": record.seed,
        "hours": round(record.hours, 4),
        "staleness": round(record.staleness.mean, 4),
        "busy": round(record.node_s.busy_share, 4),
        "packing_bound_h": round(record.bounds.packing_s / 3600, 3),
        "latency_bound_h": round(record.bounds.latency_s / 3600, 3),
    }


def write(
    name: str,
    samples: Mapping[str, list[Sample]],
    *,
    settings: Mapping[str, object],
    load_before: float,
    dry: bool,
) -> None:
    if dry:
        return
    path = results.write(
        name,
        samples=samples,
        settings=settings,
        packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


if __name__ == "__main__":
    main()
