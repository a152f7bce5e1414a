"""A controller is killed with many executions alive: how long until the next one has them all."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.live.running import Kept
from benchmarks.peers import results
from tests.chaos.victims import calls_in_flight
from tests.flows.live.running import write_run

from gyre.journal.entries import Resumed
from gyre.journal.reading import read
from gyre.plan.messages import CellRecovered
from gyre.run.controller import KINDS
from gyre.run.lock import is_taken
from gyre.testing.emulated_run import tables, write_tasks

AT_ONCE = (64, 256)
GROUP = 8
CELLS = 2
LOOK_S = 0.05
PATIENCE_S = 400.0
REPLY_S = 1_800.0
"""Of the one call that each execution makes: it lasts longer than anything here."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    args = parser.parse_args()
    kept = Kept(args.kept)
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {}
    for run in range(args.runs):
        for at_once in AT_ONCE:
            sample = kept.get("run", run, at_once)
            if sample is None:
                with tempfile.TemporaryDirectory(prefix="gyre-return-") as folder:
                    sample = kept.add(_measured(Path(folder), at_once), "run", run, at_once)
            samples.setdefault(f"{at_once} live", []).append(sample)
            print(at_once, sample, flush=True)
    if not args.dry:
        path = results.write(
            "scale-return",
            samples=samples,
            settings={"runs": args.runs, "cells": CELLS, "group": GROUP},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _tables(at_once: int) -> dict[str, dict[str, Any]]:
    return {
        "schedule": {
            "groups_per_batch": at_once // GROUP,
            "executions_per_group": GROUP,
            "steps_per_burst": 1,
            "steps": 1,
            "extra_dispatch": 0.0,
            "supply_dwell_s": 1.0,
        },
        "cells": {
            "count": CELLS,
            "capacity": at_once // CELLS,
            "trainer": "gyre.testing.emulated:trainer?base_s=0.05",
        },
        "deadlines": {"agent_s": 2 * REPLY_S, "overall_s": 3 * REPLY_S},
        "router": {"capacity": at_once},
        "engine": {"capacity": at_once, "kv_tokens": 65536},
    }


def _measured(folder: Path, at_once: int) -> dict[str, Any]:
    turn = {"reply_s": REPLY_S, "tool_s": 0.0, "words": 8}
    work = [[[turn]] * GROUP] * (at_once // GROUP)
    place = folder / "run"
    found = tables(place, write_tasks(folder / "tasks.jsonl", work), _tables(at_once))
    file = write_run(folder / "run.toml", found)
    with (folder / "said").open("ab") as said:

        def start(*arguments: str) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", "gyre", *arguments]
            return subprocess.Popen(command, stdout=said, stderr=said)

        began = time.monotonic()
        controller = start("train", str(file))
        try:
            # Each is at its call, the one thing that it does.
            _wait(lambda: calls_in_flight(place) == at_once)
            sample: dict[str, Any] = {"launched_s": time.monotonic() - began}
            controller.kill()
            controller.wait()
            controller = start("resume", str(place))
            return sample | _returned(place, at_once)
        finally:
            controller.send_signal(signal.SIGINT)
            controller.wait(PATIENCE_S)


def _returned(place: Path, at_once: int) -> dict[str, Any]:
    """Seconds since the next controller was started; nothing was lost meanwhile."""
    began = time.monotonic()
    _wait(lambda: _num(place, Resumed) == 1)
    back_s = time.monotonic() - began
    _wait(lambda: _num(place, CellRecovered) == CELLS)
    serving_s = time.monotonic() - began
    _wait(lambda: calls_in_flight(place) == at_once)
    return {
        "executions": sum(is_taken(one) for one in (place / "attempts").iterdir()),
        "back_s": back_s,
        "serving_s": serving_s,
        "calls": calls_in_flight(place),
    }


def _num(place: Path, kind: type) -> int:
    return sum(isinstance(one.event, kind) for one in read(place / "journal", kinds=KINDS).entries)


def _wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            message = "waited too long"
            raise TimeoutError(message)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
