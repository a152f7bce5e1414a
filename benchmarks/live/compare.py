"""Live runs beside the simulator: three placements with emulated durations, predicted beforehand.

One second of these runs stands for ten minutes of a run in earnest. The simulator is calibrated on
one run of another workload; what it predicts is the time to the last step of each of the others.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from benchmarks.live.running import Kept, Ran, run, work_in_order
from benchmarks.peers import results

from gyre.controller.cells.transitions import COUNTED
from gyre.scheduler.messages import StepTaken
from gyre.scheduler.replay import EVENTS, shape_of
from gyre.simulator.from_journal import recorded, times
from gyre.simulator.scenario import scenario_of
from gyre.simulator.workload import HOUR_S
from gyre.simulator.world import run as simulate
from gyre.testing.emulated_cell import Turn, workload
from gyre.types.run_events import TransitionTimed

SECONDS_STAND_FOR = "10 minutes"
MEAN_S = 2.5
STEPS = 6
BATCH, GROUP = 4, 4
CALIBRATION_SEED = 100
PACKAGES = ("aiohttp", "msgspec", "torch", "uvicorn", "uvloop")
COMMON = {
    "groups_per_batch": BATCH,
    "executions_per_group": GROUP,
    "steps": STEPS,
    "supply_dwell_s": 0.3,
}
TRAINER = "gyre.testing.emulated_cell:trainer?base_s=0.6"
PHASES = (
    *("in: reroute", "in: hand over", "in: rest", "in: restore", "in: pull"),
    *("home: finish claim", "home: rest", "home: wake", "home: load"),
)
PLACEMENTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "elastic": {
        "schedule": {"placement": "elastic", "steps_per_burst": 2, "extra_dispatch": 0.5},
        "cells": {"count": 4, "capacity": 6},
    },
    "async": {
        "schedule": {"placement": "async", "steps_per_burst": 1, "extra_dispatch": 1.0},
        "cells": {"count": 2, "capacity": 6, "standalone": [6, 6]},
    },
    "colocate": {
        "schedule": {"placement": "colocate", "steps_per_burst": 2, "extra_dispatch": 0.5},
        "cells": {"count": 4, "capacity": 6},
    },
}
"""All of four cells' worth, and of the same mean staleness in the long run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the simulator takes over from another run."""

    costs: Mapping[str, float]
    evaluations: Mapping[str, float]
    per_execution_s: float
    """Of an execution, above the time that it was told to take."""
    per_call_s: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    args = parser.parse_args()
    kept = Kept(args.kept)
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in PLACEMENTS}
    with tempfile.TemporaryDirectory(prefix="gyre-live-") as folder:
        place = Path(folder)
        found = kept.get("calibration")
        if found is None:
            ran = _run(place / "calibration", "elastic", CALIBRATION_SEED)
            found = kept.add(asdict(calibrated(ran)), "calibration")
        calibration = Calibration(**found)
        print(calibration)
        for seed in range(args.runs):
            for name, given in PLACEMENTS.items():
                sample = kept.get(name, seed)
                if sample is None:
                    predicted_s = predicted(calibration, given, seed)
                    ran = _run(place / f"{name}-{seed}", name, seed)
                    sample = kept.add(_sample(ran, seed, predicted_s), name, seed)
                samples[name].append(sample)
                print(name, samples[name][-1], flush=True)
    for name, rows in samples.items():
        errors = [abs(one["predicted_s"] / one["seconds"] - 1) for one in rows]
        print(f"{name:10} {median(one['seconds'] for one in rows):7.1f} s live", end=" ")
        print(f"{100 * median(errors):5.1f} % off at the median, at most {100 * max(errors):.1f} %")
    if not args.dry:
        settings = {
            "steps": STEPS,
            "batch": [BATCH, GROUP],
            "mean_s": MEAN_S,
            "one_second_stands_for": SECONDS_STAND_FOR,
            "calibration_seed": CALIBRATION_SEED,
            "calibration": found,
            "placements": PLACEMENTS,
        }
        path = results.write(
            "live-placements",
            samples=samples,
            settings=settings,
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _run(folder: Path, name: str, seed: int) -> Ran:
    given = PLACEMENTS[name]
    tables = {
        "schedule": {**COMMON, **given["schedule"]},
        "cells": {**given["cells"], "trainer": TRAINER},
    }
    return run(folder, tables, seed=seed, tasks=STEPS * BATCH, mean_s=MEAN_S)


def _work(seed: int) -> list[list[list[Turn]]]:
    tasks = STEPS * BATCH
    return work_in_order(workload(tasks=tasks, members=GROUP, seed=seed, mean_s=MEAN_S), seed)


def _told_s(turns: Sequence[Turn]) -> float:
    return sum(one["reply_s"] + one["tool_s"] for one in turns)


def calibrated(ran: Ran) -> Calibration:
    """Costs as the journal has them, and what executions take above what they were told."""
    tables = recorded(ran.reading).tables
    header = ran.reading.header
    assert header is not None
    found = times(shape_of(header.shape), ran.reading.facts(EVENTS))
    rows, spent = [], []
    for turns, group in zip(_work(CALIBRATION_SEED), found.executions.values(), strict=True):
        for told, one in zip(turns, group, strict=True):
            if one.ran_s is not None:
                rows.append((1.0, float(len(told))))
                spent.append(one.ran_s - _told_s(told))
    (per_execution_s, per_call_s), *_ = np.linalg.lstsq(np.array(rows), np.array(spent), rcond=None)
    return Calibration(
        costs=tables["costs"],
        evaluations=tables["evaluations"],
        per_execution_s=float(per_execution_s),
        per_call_s=float(per_call_s),
    )


def predicted(found: Calibration, given: Mapping[str, Mapping[str, Any]], seed: int) -> float:
    """Seconds to the last step, before anything has run."""
    hours = [
        [
            (_told_s(told) + found.per_execution_s + found.per_call_s * len(told)) / HOUR_S
            for told in members
        ]
        for members in _work(seed)
    ]
    longest_h = max(max(group) for group in hours)
    scenario = scenario_of(
        {
            "name": "predicted",
            "seed": seed,
            "schedule": {**COMMON, **given["schedule"]},
            "cells": {"nodes": 1, **given["cells"]},
            "work": {"recorded_h": hours},
            "deadlines": {"harness_h": 2 * longest_h, "overall_h": 4 * longest_h},
            "evaluations": dict(found.evaluations),
            "costs": dict(found.costs),
        }
    )
    return simulate(scenario).hours * HOUR_S


def _sample(ran: Ran, seed: int, predicted_s: float) -> dict[str, Any]:
    steps = [now for now, _ in ran.reading.facts((StepTaken,))]
    timed = [fact for _, fact in ran.reading.facts((TransitionTimed,))]
    phases: dict[str, list[float]] = {}
    for one in timed:
        way = "in" if one.into_training else "home"
        for phase, seconds in one.phases.items():
            phases.setdefault(f"{way}: {phase}", []).append(seconds)
    moved: dict[str, int] = {}
    for one in timed:
        for name, count in one.moved.items():
            moved[name] = moved.get(name, 0) + count
    return {
        "seed": seed,
        "seconds": steps[-1],
        "predicted_s": predicted_s,
        "wall_s": ran.wall_s,
        "transitions": len(timed),
        **{f"{name}, s": fmean(phases[name]) if name in phases else None for name in PHASES},
        **{f"moved {name}": moved.get(name, 0) for name in COUNTED},
        "facts": len(ran.reading.entries),
        "journal_bytes": ran.reading.sound_bytes,
        "controller_cpu_s": ran.used["controller"].cpu_s,
        "proxy_cpu_s": ran.used["proxy"].cpu_s,
    }


if __name__ == "__main__":
    main()
