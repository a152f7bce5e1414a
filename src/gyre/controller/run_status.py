"""A run as it lies in its folder: how far it has come, who works on it, what may change."""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.cluster.procfs import lock_holder
from gyre.config.run_config import RunConfig
from gyre.config.toml import leaves
from gyre.controller.run_file import RunFile, read_run
from gyre.journal.reader import Header, path_of, read, refuse_to_go_on
from gyre.scheduler.messages import Published, StepTaken, StopReason
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.storage.files import RUN_FILE
from gyre.types.errors import ConfigError

MAY_CHANGE = (
    "run.folder",
    "cluster",
    "transport",
    "schedule.publish_s",
    "schedule.join_s",
    "schedule.lease_s",
    "schedule.group_s",
    "cells.threads",
    "trainer.kind",
    "proxy.alone_s",
    "checkpoint",
    "trackers",
)
"""Keys, and tables of them, that no decision and no reward depends on."""
SETTINGS = "settings"
"""Among the notes of a journal's header."""
GONE_S = 30.0
"""How long a killed process may take to be gone."""
STOP_S = 120.0
"""How long a controller that is asked to stop may take: it ends its executions first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands, by its folder and its journal."""

    header: Header
    num_steps: int
    published: int
    stopped: StopReason | None
    """Why its scheduler ended it; None of one that can go on."""

    def __str__(self) -> str:
        """In a few words."""
        steps = "1 step" if self.num_steps == 1 else f"{self.num_steps} steps"
        how = "can go on" if self.stopped is None else f"is over ({self.stopped.value})"
        return f"{self.header.run}: {steps} taken, version {self.published} published; it {how}"


def standing(folder: Path) -> RunStatus | None:
    """None where no run was begun."""
    path = path_of(folder)
    if not path.exists():
        return None
    found = read(path, kinds=EVENTS)
    if found.header is None:
        return None
    events = found.facts(EVENTS)
    taken = [event.step for _, event in events if isinstance(event, StepTaken)]
    published = [event.version for _, event in events if isinstance(event, Published)]
    again = replay(shape_of(found.header.shape), events)
    return RunStatus(
        header=found.header,
        num_steps=max(taken, default=-1) + 1,
        published=max(published, default=0),
        stopped=again.scheduler.stopped,
    )


def recorded(folder: Path, overrides: Iterable[str] = ()) -> RunFile:
    """The run of a folder, with values given beside its run file; refused if they matter."""
    path = folder / RUN_FILE
    if not path.exists():
        raise ConfigError(f"{folder}: expected the folder of a run, with its {RUN_FILE}")
    run = read_run(path, [*overrides, f"run.folder={folder}"])
    refuse_changes(folder, run)
    return run


def refuse_changes(folder: Path, run: RunFile) -> None:
    """ConfigError with every key that another value is asked for, and may not change.

    Also for a run of a format that cannot go on.
    """
    header = read(path_of(folder), kinds=()).header
    if header is not None:
        refuse_to_go_on(path_of(folder), header)
    before = read_run(folder / RUN_FILE).config
    found = list(changes(before, run.config))
    if found:
        lines = "\n  ".join(found)
        raise ConfigError(f"{folder}: a run goes on as it began, and cannot change\n  {lines}")
    if header is None:
        return
    # The file may have been changed since, and the journal has not.
    began = header.notes[SETTINGS]
    now = fixed_settings(run.config)
    changed = [
        f"{path}: was {began[path]}, {RUN_FILE} says {now[path]}"
        for path in began
        if path in now and began[path] != now[path]
    ]
    if changed:
        lines = "\n  ".join(changed)
        raise ConfigError(f"{folder}: a run goes on as its journal says it began\n  {lines}")
    if shape_of(header.shape) != run.shape:
        raise ConfigError(f"{folder}: {RUN_FILE} describes another schedule than the journal's")


def fixed_settings(config: RunConfig) -> dict[str, str]:
    """What the header of a run's journal has of its file: all that may not change."""
    return {path: repr(_plain(value)) for path, value in leaves(config) if not _may_change(path)}


def _plain(value: Any) -> Any:
    """The same for values that mean the same, in any order of keys and kind of list."""
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _may_change(path: str) -> bool:
    return any(path == pattern or path.startswith(f"{pattern}.") for pattern in MAY_CHANGE)


def changes(before: RunConfig, now: RunConfig) -> Iterator[str]:
    """Keys that matter and have another value, each with both."""
    old, new = dict(leaves(before)), dict(leaves(now))
    for path in {**old, **new}:
        if not _may_change(path) and old.get(path) != new.get(path):
            yield f"{path}: was {old.get(path)!r}, asked for now {new.get(path)!r}"


def require_no_writer(folder: Path, *, take_over: bool) -> None:
    """No process writes the run's journal; with `take_over` the one that does is killed.

    A process that is stopped or hangs keeps the journal, so that two never write it.
    """
    path = path_of(folder)
    pid = lock_holder(path)
    if pid is None:
        return
    if not take_over:
        message = f"{path}: process {pid} works on this run; --take-over ends it first"
        raise ConfigError(message)
    os.kill(pid, signal.SIGKILL)
    if not _is_gone(path, pid, GONE_S):
        raise ConfigError(f"{path}: process {pid} was killed, and still works on this run")


def end_controller(folder: Path, tell: Callable[[str], None]) -> None:
    """Stops the run's controller as Ctrl-C does, and waits for its end.

    `tell` is called with a line that names its process. ConfigError if it is on another machine.
    """
    path = path_of(folder)
    pid = lock_holder(path)
    if pid is None:
        if path.exists() and not _is_free(path):
            message = f"{path}: a process of another machine works on this run; "
            raise ConfigError(f"{message}gyre stop {folder} has to be said there")
        return
    tell(f"process {pid} is told to stop; it has {STOP_S:.0f} s to end its executions")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        # One that was suspended, by Ctrl-Z for instance, would act on it only when it goes on.
        os.kill(pid, signal.SIGCONT)
    if not _is_gone(path, pid, STOP_S):
        message = f"{path}: process {pid} was told to stop, and works on; "
        raise ConfigError(f"{message}gyre resume {folder} --take-over goes on without it")


def _is_free(path: Path) -> bool:
    """Whether the journal has no writer, wherever that would be."""
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_gone(path: Path, pid: int, within_s: float) -> bool:
    """Whether it leaves the journal in time."""
    until = time.monotonic() + within_s
    while lock_holder(path) == pid:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
