"""A controller is killed with many executions alive: how long until the next one has them all."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.live.running import Kept
from benchmarks.peers import results
from tests.chaos.victims import calls_in_flight
from tests.flows.live.running import write_run

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import JournalFollower, Resumed
from gyre.scheduler.messages import CellDied, CellRecovered
from gyre.storage.files import is_taken
from gyre.testing.emulated_cell import tables, write_tasks

AT_ONCE = (64, 256, 512)
GROUP = 8
CELLS = 2
LOOK_S = 0.05
LIMIT_S = 180.0
"""Of one run, from its start until the next controller has everything again."""
END_S = 120.0
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
                try:
                    with tempfile.TemporaryDirectory(prefix="gyre-return-") as folder:
                        sample = kept.add(_measured(Path(folder), at_once), "run", run, at_once)
                except TimeoutError:
                    print(f"{at_once}: not within {LIMIT_S:g} s, left out", flush=True)
                    continue
            samples.setdefault(f"{at_once} live", []).append(sample)
            print(at_once, sample, flush=True)
    if samples and not args.dry:
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
            "trainer": "gyre.testing.emulated_cell:trainer?base_s=0.05",
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
        wait = _Waiting(began + LIMIT_S)
        controller = start("train", str(file))
        try:
            # Each is at its call, the one thing that it does.
            wait(lambda: calls_in_flight(place) == at_once)
            sample: dict[str, Any] = {"launched_s": time.monotonic() - began}
            controller.kill()
            controller.wait()
            seen = _Seen(place / "journal")
            controller = start("resume", str(place))
            return sample | _returned(place, at_once, seen, wait)
        finally:
            controller.send_signal(signal.SIGINT)
            controller.wait(END_S)


def _returned(place: Path, at_once: int, seen: "_Seen", wait: "_Waiting") -> dict[str, Any]:
    """Seconds since the next controller was started; nothing was lost meanwhile."""
    began = time.monotonic()
    wait(lambda: seen.num(Resumed) == 1)
    read_s = time.monotonic() - began
    # Said of the cells that ended with the last controller, once every execution is known again.
    wait(lambda: seen.num(CellDied) == CELLS)
    back_s = time.monotonic() - began
    wait(lambda: seen.num(CellRecovered) == CELLS)
    serving_s = time.monotonic() - began
    wait(lambda: calls_in_flight(place) == at_once)
    return {
        "executions": sum(is_taken(one) for one in (place / "attempts").iterdir()),
        "read_s": read_s,
        "back_s": back_s,
        "serving_s": serving_s,
        "calls": calls_in_flight(place),
    }


class _Seen:
    """Kinds of events since the last controller was killed."""

    def __init__(self, path: Path) -> None:
        self._journal = JournalFollower(path, kinds=JOURNAL_EVENTS)
        self._journal.news()
        self._found: Counter[type] = Counter()

    def num(self, kind: type) -> int:
        self._found.update(type(one.event) for one in self._journal.news())
        return self._found[kind]


class _Waiting:
    """Waits for what it is asked, and gives up at one moment for all."""

    def __init__(self, until: float) -> None:
        self._until = until

    def __call__(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if time.monotonic() > self._until:
                message = "waited too long"
                raise TimeoutError(message)
            time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
