"""Whole runs by the controller, in processes of their own, with everything that it decided."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from gyre.aio import run_loop
from gyre.config.toml import spelled
from gyre.controller.controller import JOURNAL_EVENTS, Controller
from gyre.controller.run_dir import read_run
from gyre.journal.journal import JournalContents, read
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import StopReason
from gyre.scheduler.replay import EVENTS
from gyre.testing import light_agent
from gyre.testing.emulated_cell import tables, workload, write_tasks

Heard = Callable[[float, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run that is over."""

    folder: Path
    shape: SchedulerConfig
    reason: StopReason | None
    decided: Sequence[tuple[float, Any, tuple[Any, ...]]]
    """Events with their times and what was ordered because of each."""
    reading: JournalContents

    def facts(self, *kinds: type) -> list[Any]:
        return [fact for _, fact in self.timed(*kinds)]

    def timed(self, *kinds: type) -> list[tuple[float, Any]]:
        return [
            (entry.now, entry.event)
            for entry in self.reading.entries
            if isinstance(entry.event, kinds)
        ]

    @property
    def events(self) -> list[tuple[float, Any]]:
        return self.timed(*EVENTS)


SCHEDULE = {
    "groups_per_batch": 3,
    "executions_per_group": 4,
    "steps_per_burst": 2,
    "steps": 4,
    "extra_dispatch": 1 / 3,
    "supply_dwell_s": 0.05,
}
"""Of a run of a few seconds: real processes and control, emulated durations."""


UNTIL = """
case $OPENAI_BASE_URL in */exec/%s*) until [ -e "$0" ]; do sleep 0.05; done;; esac
exec python3 -S -E "$1" "$2"
"""
"""The light agent, which in some executions begins only when a file is there."""


def held(opened: Path, names: str) -> dict[str, Any]:
    """[harness] by which executions are under way until a file is there.

    Their names begin as the shell's pattern says, in which `g00004*-00` is g00004.1-00 as well:
    the execution has that name if a controller died over its launch.
    """
    agent = ["sh", "-c", UNTIL % names, str(opened), light_agent.__file__, "{instruction}"]
    return {"argv": agent}


def tasks_of(folder: Path, *, seed: int, mean_s: float, tasks: int = 40, members: int = 4) -> Path:
    work = workload(tasks=tasks, members=members, seed=seed, mean_s=mean_s)
    return write_tasks(folder / "tasks.jsonl", work)


def write_run(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> Path:
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {spelled(one)}" for key, one in table.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def emulated(
    folder: Path, *, tasks: Path, heard: Heard | None = None, **changed: Mapping[str, Any]
) -> Ran:
    """Runs the emulated run in `folder/run`, with some keys of its tables changed."""
    found = tables(folder / "run", tasks, {"schedule": SCHEDULE}, changed)
    return run_live(write_run(folder / "run.toml", found), heard=heard)


def pid_of(folder: Path, name: str) -> int:
    """Of a process of the run in `folder/run`, such as cell-1 or proxy."""
    return int((folder / "run" / "pids" / name).read_text())


def run_live(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    heard: Heard | None = None,
    resumes: bool = False,
) -> Ran:
    """The run of a file, to its end; `heard` is told every fact once it is journaled."""
    run = read_run(path, overrides)
    folder = Path(run.config.run.place)
    decided: list[tuple[float, Any, tuple[Any, ...]]] = []
    controller = Controller(
        run,
        folder,
        resumes=resumes,
        listeners=() if heard is None else (heard,),
        decided=lambda _, now, event, orders: decided.append((now, event, tuple(orders))),
    )
    reason = run_loop(controller.work(), loop_factory=uvloop.new_event_loop)
    return Ran(
        folder=folder,
        shape=run.shape,
        reason=reason,
        decided=decided,
        reading=read(folder / "journal", kinds=JOURNAL_EVENTS),
    )
