"""256 executions at once in one run, with a light agent program and an emulated engine."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.live.running import Kept, Ran, run
from benchmarks.peers import results

from gyre.scheduler.messages import ExecutionTerminated, LaunchExecution, StepTaken
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.storage import call_log
from gyre.types.call_records import CallClosed, CallFailed

AT_ONCE = 256
CELLS = 4
GROUP = 8
STEPS = 2
MEAN_S = 20.0
"""Of an execution; long enough for all of them to be there before the first ends."""
TABLES: dict[str, dict[str, Any]] = {
    "schedule": {
        "groups_per_batch": AT_ONCE // GROUP,
        "executions_per_group": GROUP,
        "steps_per_burst": 1,
        "steps": STEPS,
        "extra_dispatch": 0.0,
        "supply_dwell_s": 1.0,
    },
    "cells": {
        "count": CELLS,
        "capacity": AT_ONCE // CELLS,
        "trainer": "gyre.testing.emulated_cell:trainer?base_s=0.05",
    },
    "deadlines": {"agent_s": 600.0, "overall_s": 900.0},
    "router": {"capacity": AT_ONCE},
    "engine": {"capacity": AT_ONCE, "kv_tokens": 65536},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true", help="print the sample, write no result")
    parser.add_argument("--kept", type=Path, help="the sample is added here, and not made again")
    args = parser.parse_args()
    kept = Kept(args.kept)
    load_before = os.getloadavg()[0]
    sample = kept.get("run")
    if sample is None:
        with tempfile.TemporaryDirectory(prefix="gyre-many-") as folder:
            place = Path(folder)
            tasks = STEPS * TABLES["schedule"]["groups_per_batch"]
            ran = run(place / "many", TABLES, seed=0, tasks=tasks, mean_s=MEAN_S)
            sample = kept.add(_sample(ran, place / "many" / "run"), "run")
    print(sample)
    if not args.dry:
        path = results.write(
            "live-many",
            samples={"run": [sample]},
            settings={"tables": TABLES, "mean_s": MEAN_S},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _sample(ran: Ran, folder: Path) -> dict[str, Any]:
    header = ran.reading.header
    assert header is not None
    events = ran.reading.facts(EVENTS)
    orders = replay(shape_of(header.shape), events).orders
    running = most = 0
    for (_, event), commands in zip(events, orders, strict=True):
        running -= isinstance(event, ExecutionTerminated)
        running += sum(isinstance(one, LaunchExecution) for one in commands)
        most = max(most, running)
    records = [one for path in call_log.logs(folder) for one in call_log.read(path).records]
    steps = [now for now, _ in ran.reading.facts((StepTaken,))]
    return {
        "at_once": most,
        "executions": sum(1 for _ in call_log.logs(folder)),
        "seconds": steps[-1],
        "calls": sum(isinstance(one, CallClosed) for one in records),
        "failed_calls": sum(isinstance(one, CallFailed) for one in records),
        "facts": len(ran.reading.entries),
        "journal_bytes": ran.reading.sound_bytes,
        **{
            f"{name}_{what}": value
            for name, used in ran.used.items()
            for what, value in (("cpu_s", used.cpu_s), ("peak_mib", used.peak_mib))
        },
    }


if __name__ == "__main__":
    main()
