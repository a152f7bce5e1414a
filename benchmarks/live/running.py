"""Emulated runs as a benchmark makes them: a workload by seed, a run file, and what it left."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.live import left
from benchmarks.live.left import Left
from benchmarks.peers import results

from gyre.batching.task_sampler import TaskSampler
from gyre.config.toml import spelled
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import JournalContents, read
from gyre.scheduler.messages import StopReason
from gyre.testing.emulated_cell import Turn, tables, workload, write_tasks
from gyre.types.errors import ConfigError
from gyre.types.run_events import RunEnded

SAMPLE_S = 0.25
STOP_S = 20.0
"""How long a run may take to end after it was told to."""
STOPPED = 124
"""The status of one that was told to, as timeout(1) has it."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Used:
    """What one process took."""

    cpu_s: float = 0.0
    peak_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run that is over."""

    reading: JournalContents
    wall_s: float
    """From the command to its end, with its start, and its summary if that was waited for."""
    used: Mapping[str, Used] = field(default_factory=dict)
    """By process: controller and proxy."""
    around: Mapping[str, float] = field(default_factory=dict)
    """What it began beside, and how long its processes took to be gone."""


def work_in_order(work: Sequence[Sequence[Sequence[Turn]]], seed: int) -> list[list[list[Turn]]]:
    """The turns of each group's executions, in the order in which a run draws its queries."""
    queries = TaskSampler(len(work), seed=seed)
    return [[list(one) for one in work[queries.draw()]] for _ in work]


def run(
    folder: Path, given: Mapping[str, Mapping[str, Any]], *, seed: int, tasks: int, mean_s: float
) -> Ran:
    """A run of its own in `folder`; raises CalledProcessError if it does not end well."""
    folder.mkdir(parents=True)
    members = given["schedule"]["executions_per_group"]
    work = workload(tasks=tasks, members=members, seed=seed, mean_s=mean_s)
    path = write_tasks(folder / "tasks.jsonl", work)
    return trained(folder, tables(folder / "run", path, given, {"run": {"seed": seed}}))


def trained(
    folder: Path,
    found: Mapping[str, Mapping[str, Any]],
    *,
    within_s: float | None = None,
    is_over_early: bool = False,
) -> Ran:
    """The run that the tables describe, watched; its own folder is the one called run.

    One that takes longer than `within_s` is stopped, and fails; one that is over early is so as
    soon as its journal says that it has finished. None of its processes is left.
    """
    file = folder / "run.toml"
    file.write_text("\n".join(_lines(found)) + "\n")
    around = left.around()
    began = time.monotonic()
    with (folder / "said").open("wb") as said:
        command = [sys.executable, "-m", "gyre", "train", str(file)]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        watch = _Watch(process.pid)
        waits = over if is_over_early else ended
        try:
            status = waits(process, folder / "run", within_s)
        except BaseException:
            watch.stop()
            process.terminate()
            left_alone(process, folder)
            raise
        wall_s = time.monotonic() - began
        watch.stop()
        leave_s = left_alone(process, folder)
    if status != 0:
        sys.stderr.write((folder / "said").read_text())
        raise subprocess.CalledProcessError(status, command)
    return Ran(
        reading=read(folder / "run" / "journal", kinds=JOURNAL_EVENTS),
        wall_s=wall_s,
        used=watch.used,
        around={**around, "leave_s": leave_s},
    )


def left_alone(process: "subprocess.Popen[bytes]", folder: Path) -> float:
    """Seconds until the run in the folder called run in this one had no process any more."""
    began = time.monotonic()
    others = Left(folder)
    others.look()
    ended(process, folder / "run", left.LEAVE_S)
    others.gone(folder / "run")
    return time.monotonic() - began


def end_when_told() -> None:
    """SIGTERM ends this process as an error does, so that whatever it has started ends as well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))


def over(process: "subprocess.Popen[bytes]", folder: Path, within_s: float | None) -> int:
    """The status of the run in the folder, as soon as its journal says that it has finished."""
    began = time.monotonic()
    while within_s is None or time.monotonic() - began < within_s:
        if process.poll() is not None:
            return process.returncode
        journal = folder / "journal"
        facts = read(journal, kinds=JOURNAL_EVENTS).facts((RunEnded,)) if journal.exists() else ()
        if any(fact.reason == StopReason.FINISHED.value for _, fact in facts):
            return 0
        time.sleep(SAMPLE_S)
    return ended(process, folder, 0.0)


def ended(process: "subprocess.Popen[bytes]", folder: Path, within_s: float | None) -> int:
    """The status of the run in the folder, which is told to end if it takes longer than that.

    One that does not is killed, and what it left is stopped.
    """
    with suppress(subprocess.TimeoutExpired):
        return process.wait(within_s)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
        return STOPPED
    process.kill()
    process.wait()
    with suppress(subprocess.TimeoutExpired):
        stop = [sys.executable, "-m", "gyre", "stop", str(folder)]
        subprocess.run(stop, check=False, timeout=STOP_S)
    return STOPPED


def _lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for name, table in found.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {spelled(value)}" for key, value in table.items()]
    return lines


class _Watch:
    """Looks at the controller and its proxy from time to time."""

    def __init__(self, controller: int) -> None:
        self.used = {"controller": Used(), "proxy": Used()}
        self._controller = controller
        self._proxy: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(SAMPLE_S):
            if self._proxy is None:
                self._proxy = _child(self._controller, "gyre.proxy.main")
            for name, pid in (("controller", self._controller), ("proxy", self._proxy)):
                if pid is not None:
                    _look(pid, self.used[name])


def _child(parent: int, module: str) -> int | None:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text().rsplit(")", 1)[1].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == parent and module.encode() in command:
            return int(path.name)
    return None


def _look(pid: int, used: Used) -> None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return
    used.cpu_s = (int(stat[11]) + int(stat[12])) / TICKS
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            used.peak_mib = int(line.split()[1]) / 1024


class Kept:
    """Samples in a file, a line each as they come, so that what was measured is not lost.

    Rule 1: a file has samples of the same sources, made in the same way, and of no others.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any] | None = None) -> None:
        """`about` is what all samples there have in common, beside the sources."""
        self._path = path
        self._found: dict[tuple[str | int, ...], dict[str, Any]] = {}
        if path is None:
            return
        about = json.loads(json.dumps({"sources": results.sources_digest(), **(about or {})}))
        if not path.exists() or not path.stat().st_size:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write({"about": about})
            return
        first = json.loads(path.read_text().splitlines()[0])
        found = first.get("about", {})
        if differ := sorted(key for key in {*found, *about} if found.get(key) != about.get(key)):
            were = ", ".join(f"{key}: {found.get(key)!r}, not {about.get(key)!r}" for key in differ)
            message = f"{path}: expected samples of what is measured now, found those of {were}"
            raise ConfigError(f"{message}; name another file, or remove this one")
        self._found = self.found(path)

    @staticmethod
    def found(path: Path) -> dict[tuple[str | int, ...], dict[str, Any]]:
        """What such a file has, whatever it is of."""
        _, *lines = map(json.loads, path.read_text().splitlines())
        return {tuple(one["of"]): one["sample"] for one in lines}

    def get(self, *of: str | int) -> dict[str, Any] | None:
        """What was measured of this before."""
        return self._found.get(of)

    def add(self, sample: dict[str, Any], *of: str | int) -> dict[str, Any]:
        self._found[of] = sample
        self._write({"of": of, "sample": sample})
        return sample

    def part(self, name: str) -> "Part":
        return Part(self, name)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


class Part:
    """Samples that are measured together: all of them are made again unless they are whole."""

    def __init__(self, kept: Kept, name: str) -> None:
        self._kept = kept
        self._name = name
        self._number = 0

    def samples(self) -> list[tuple[str, dict[str, Any]]] | None:
        """In order, what was measured; None unless it came to its end."""
        whole = self._kept.get(self._name)
        if whole is None:
            return None
        lines = [self._kept.get(self._name, number) for number in range(whole["number"])]
        return [(one["what"], one["sample"]) for one in lines if one is not None]

    def add(self, what: str, sample: dict[str, Any]) -> None:
        self._kept.add({"what": what, "sample": sample}, self._name, self._number)
        self._number += 1

    def end(self) -> None:
        self._kept.add({"number": self._number}, self._name)
