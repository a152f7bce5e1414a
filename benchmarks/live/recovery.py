"""How long a run takes to be whole again after a process is killed, and what its journal costs.

One emulated run after another: in each the same processes are killed, one at a time and with calls
in flight, and the journal says when the run had noticed and when the process was back.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.live.running import Kept
from benchmarks.peers import results
from tests.chaos.victims import calls_in_flight, victims
from tests.flows.live.running import write_run

from gyre.journal.journal import Journal, JournalContents, Resumed, read
from gyre.scheduler.messages import CellDied, CellRecovered, EngineLost, EngineReturned, StepTaken
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.testing.emulated_cell import tables, workload, write_tasks
from gyre.types.run_events import ProxyRestarted

LOOK_S = 0.01
PATIENCE_S = 120.0
SETTLE_S = 2.0
"""Between two faults, for the run to be as it was."""
MEAN_S = 3.0
CELLS = 3
TABLES: dict[str, dict[str, Any]] = {
    "schedule": {
        "groups_per_batch": 4,
        "executions_per_group": 4,
        "steps_per_burst": 2,
        "steps": 400,
        "extra_dispatch": 0.5,
        "supply_dwell_s": 0.3,
    },
    "cells": {
        "count": CELLS,
        "capacity": 8,
        "standalone": [8],
        "trainer": "gyre.testing.emulated_cell:trainer?base_s=0.2",
    },
}
ENGINE = CELLS
"""The standalone one, by its number."""

Sign = Callable[[Any], bool]
FAULTS: dict[str, tuple[str, Sign | None, Sign]] = {
    "engine": (
        f"engine-{ENGINE}",
        lambda one: isinstance(one, EngineLost) and one.engine == ENGINE,
        lambda one: isinstance(one, EngineReturned) and one.engine == ENGINE,
    ),
    "satellite": (
        f"cell-{CELLS - 1}",
        lambda one: isinstance(one, CellDied) and one.cell == CELLS - 1,
        lambda one: isinstance(one, CellRecovered) and one.cell == CELLS - 1,
    ),
    "core": (
        "cell-0",
        lambda one: isinstance(one, CellDied) and one.cell == 0,
        lambda one: isinstance(one, CellRecovered) and one.cell == 0,
    ),
    "proxy": ("proxy", None, lambda one: isinstance(one, ProxyRestarted)),
}
"""By kind: which process is killed, and the facts that say noticed and back."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    args = parser.parse_args()
    kept = Kept(args.kept)
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {}
    for seed in range(args.runs):
        found = kept.get("run", seed)
        if found is None:
            with tempfile.TemporaryDirectory(prefix="gyre-recovery-") as folder:
                found = kept.add(_measured(Path(folder), seed), "run", seed)
        print(found)
        for kind, sample in found.items():
            samples.setdefault(kind, []).append(sample)
    if not args.dry:
        path = results.write(
            "live-recovery",
            samples=samples,
            settings={"tables": TABLES, "mean_s": MEAN_S},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _measured(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """By kind of fault one sample, and one of the journal."""
    members = TABLES["schedule"]["executions_per_group"]
    work = workload(tasks=200, members=members, seed=seed, mean_s=MEAN_S)
    tasks = write_tasks(folder / "tasks.jsonl", work)
    place = folder / "run"
    file = write_run(folder / "run.toml", tables(place, tasks, TABLES, {"run": {"seed": seed}}))
    with (folder / "said").open("ab") as said:

        def start(*arguments: str) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", "gyre", *arguments]
            return subprocess.Popen(command, stdout=said, stderr=said)

        controller = start("train", str(file))
        try:
            _wait(lambda: _has(place, lambda one: isinstance(one, StepTaken)))
            found = {kind: _struck(place, kind) for kind in FAULTS}
            found["controller"], controller = _controller(place, controller, start)
            found["journal"] = _journal(folder, read(place / "journal", kinds=JOURNAL_EVENTS))
        finally:
            controller.send_signal(signal.SIGINT)
            controller.wait(PATIENCE_S)
    return found


def _struck(place: Path, kind: str) -> dict[str, Any]:
    """Seconds until the run had noticed, and until the process was back."""
    name, noticed, back = FAULTS[kind]
    time.sleep(SETTLE_S)
    _wait(lambda: bool(calls_in_flight(place)))
    calls = calls_in_flight(place)
    after = len(read(place / "journal", kinds=JOURNAL_EVENTS).entries)
    (victim,) = [one for one in victims(place) if one.name == name]
    began = time.monotonic()
    victim.send(signal.SIGKILL)
    noticed_s = None if noticed is None else _until(place, after, noticed, began)
    return {
        "calls": calls,
        **({} if noticed_s is None else {"noticed_s": noticed_s}),
        "back_s": _until(place, after, back, began),
    }


def _controller(
    place: Path,
    controller: "subprocess.Popen[bytes]",
    start: Callable[..., "subprocess.Popen[bytes]"],
) -> tuple[dict[str, Any], "subprocess.Popen[bytes]"]:
    """Until the next one writes the journal, until an engine serves, and until a step is taken."""
    time.sleep(SETTLE_S)
    _wait(lambda: bool(calls_in_flight(place)))
    calls = calls_in_flight(place)
    controller.kill()
    controller.wait()
    after = len(read(place / "journal", kinds=JOURNAL_EVENTS).entries)
    began = time.monotonic()
    controller = start("resume", str(place))
    sample = {
        "calls": calls,
        "executions": sum(one.kind == "supervisor" for one in victims(place)),
        "back_s": _until(place, after, lambda one: isinstance(one, Resumed), began),
        "serving_s": _until(
            place, after, lambda one: isinstance(one, CellRecovered | EngineReturned), began
        ),
        "step_s": _until(place, after, lambda one: isinstance(one, StepTaken), began),
    }
    return sample, controller


def _journal(folder: Path, reading: JournalContents) -> dict[str, Any]:
    """Its size by fact and by step, and the time to make its facts durable one at a time."""
    assert reading.header is not None
    facts = [(one.now, one.event) for one in reading.entries if not isinstance(one.event, Resumed)]
    steps = [now for now, event in facts if isinstance(event, StepTaken)]
    took: list[float] = []
    with Journal.create(folder / "again", reading.header, kinds=JOURNAL_EVENTS) as journal:
        for now, event in facts:
            began = time.perf_counter()
            journal.append(event, now=now)
            journal.commit()
            took.append(time.perf_counter() - began)
    per_step = len(facts) / len(steps)
    step_s = (steps[-1] - steps[0]) / (len(steps) - 1)
    return {
        "facts": len(facts),
        "steps": len(steps),
        "bytes_per_fact": reading.sound_bytes / len(facts),
        "kib_per_step": reading.sound_bytes / len(steps) / 1024,
        "facts_per_step": per_step,
        "commit_ms": 1000 * fmean(took),
        "step_s": step_s,
        "share_of_step": per_step * fmean(took) / step_s,
    }


def _until(place: Path, after: int, sign: Sign, began: float) -> float:
    _wait(lambda: _has(place, sign, after))
    return time.monotonic() - began


def _has(place: Path, sign: Sign, after: int = 0) -> bool:
    path = place / "journal"
    if not path.exists():
        return False
    return any(sign(one.event) for one in read(path, kinds=JOURNAL_EVENTS).entries[after:])


def _wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            message = "waited too long"
            raise TimeoutError(message)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
