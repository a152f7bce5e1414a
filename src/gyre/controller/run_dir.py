"""A run's folder: its paths and run file, how far the run has come, and who works on it."""

import fcntl
import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.cluster.process import lock_holder
from gyre.config.loader import LoadedConfig, load
from gyre.config.run_config import CellsConfig, HeldOutEvalConfig, RunConfig, ScheduleConfig
from gyre.config.toml import leaves
from gyre.journal.journal import Header, path_of, read, refuse_to_go_on
from gyre.model.checkpoint_store import CHECKPOINTS
from gyre.scheduler.config import SCHEDULE_FIELDS, SchedulerConfig
from gyre.scheduler.messages import Published, StepTaken, StopReason
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Elastic,
    LaunchOrder,
    LongestFirst,
    OldestFirst,
)
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.storage.files import RUN_FILE, TOKEN_FILE, replace
from gyre.types.errors import ConfigError, visible

_PATHS = {
    "num_cells": "cells.count",
    "cell_capacity": "cells.capacity",
    "standalone_capacities": "cells.standalone",
    "evaluation_slots": "evaluation.slots",
    "dispatch": "schedule.depth",
    "dispatch.depth": "schedule.depth",
    "dispatch.extra_dispatch": "schedule.extra_dispatch",
    "placement.streaming": "schedule.streaming",
}
_FIELD = re.compile(r"([a-z_.]+)(.*)", re.DOTALL)


def shape_fields(
    schedule: ScheduleConfig, cells: CellsConfig, evaluation: HeldOutEvalConfig
) -> dict[str, Any]:
    """All but dispatch, placement and launch order, whose names stand for the scheduler's parts."""
    return {
        **{name: getattr(schedule, name) for name in SCHEDULE_FIELDS},
        "num_cells": cells.count,
        "cell_capacity": cells.capacity,
        "standalone_capacities": cells.standalone,
        "evaluation_slots": evaluation.slots,
    }


def extra_dispatch(schedule: ScheduleConfig) -> float | None:
    """phi; for a target staleness the nearest that is possible, because the target is refused."""
    phi = schedule.phi
    if phi is None or schedule.staleness is None:
        return phi
    batch = max(1, schedule.groups_per_batch)
    return max(0, round(phi * batch)) / batch


def placed(mistake: str) -> str:
    """A mistake of a field, said of the key that the field comes from."""
    found = _FIELD.match(mistake)
    if found is None:
        return f"schedule: {mistake}"
    name, rest = found.groups()
    return _PATHS.get(name, f"schedule.{name}") + rest


_PLACEMENTS: dict[str, type[Elastic | Async | Colocate]] = {
    "elastic": Elastic,
    "async": Async,
    "colocate": Colocate,
}
_ORDERS: dict[str, type[LaunchOrder]] = {"oldest": OldestFirst, "longest": LongestFirst}
_NEEDED = ("schedule", "cells", "evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run file that was read and checked: its settings, and the scheduler's."""

    config: RunConfig
    shape: SchedulerConfig
    loaded: LoadedConfig
    """Where its values come from."""


def read_run(path: Path, overrides: Iterable[str] = ()) -> RunFile:
    """What the file and the values beside it describe; refused with all that is wrong (SPEC 10)."""
    return checked(load(path, overrides))


def checked(loaded: LoadedConfig) -> RunFile:
    """The same for what has been loaded; the shape is asked as soon as its own tables are sound."""
    if not all(name in loaded.sections for name in _NEEDED):
        raise loaded.refusal()
    try:
        shape = _shape(loaded.sections)
    except ConfigError as error:
        raise loaded.refusal([placed(line) for line in str(error).splitlines()]) from error
    return RunFile(config=loaded.config, shape=shape, loaded=loaded)


def _shape(sections: Mapping[str, Any]) -> SchedulerConfig:
    schedule = sections["schedule"]
    phi = extra_dispatch(schedule)
    return SchedulerConfig(
        **shape_fields(schedule, sections["cells"], sections["evaluation"]),
        dispatch=Continuous(depth=schedule.depth) if phi is None else Boundary(extra_dispatch=phi),
        placement=_PLACEMENTS[schedule.placement](streaming=schedule.streaming),
        launch_order=_ORDERS[schedule.launch_order](),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """The paths of one run folder."""

    run: Path
    share: Path
    """In memory; gone with the run."""

    @property
    def token(self) -> Path:
        return self.run / TOKEN_FILE

    @property
    def checkpoints(self) -> Path:
        """A folder for each version that stays."""
        return self.run / CHECKPOINTS

    @property
    def file(self) -> Path:
        """The run file, every default written out."""
        return self.run / RUN_FILE

    @property
    def facts_endpoint(self) -> Path:
        """Where supervisors post facts, and the token that they show; a secret."""
        return self.run / "desk.json"

    @property
    def shares(self) -> Path:
        """Names the folder in memory that its processes share."""
        return self.run / "share"

    @property
    def journal(self) -> Path:
        return self.run / "journal"

    @property
    def attempts(self) -> Path:
        """Folders of executions, by name."""
        return self.run / "attempts"

    def plan(self, name: str) -> Path:
        return self.run / "plans" / f"{name}.json"

    @property
    def pids(self) -> Path:
        return self.run / "pids"

    def pid(self, name: str) -> Path:
        """Holds the id of the process that has that name now."""
        return self.pids / name

    def note_pid(self, name: str, pid: int) -> None:
        """Where people, tests and the next controller find it."""
        self.pids.mkdir(exist_ok=True, mode=0o700)
        # Whole at once, and beside the folder, all of whose files are processes.
        beside = self.run / f"{name}.pid"
        beside.write_text(str(pid))
        beside.replace(self.pid(name))

    def log(self, name: str) -> Path:
        return self.run / "logs" / f"{name}.log"


MEMORY = Path("/dev/shm")
PREFIX = "gyre-"
"""What their names begin with; only what is named so is believed to be one."""


def opened(run: Path, stack: AsyncExitStack, *, in_memory: bool = True) -> RunDir:
    """The paths of a run, with a folder in memory that is removed with the stack.

    It is noted before it is there, so that a later controller removes what this one could not.
    Not in memory, it lies in the run's folder, because processes of other machines see that.
    """
    run.mkdir(parents=True, exist_ok=True, mode=0o700)
    memory = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    memory = memory if in_memory else run.absolute()
    places = RunDir(run=run.absolute(), share=memory / f"{PREFIX}{secrets.token_hex(8)}")
    _note(places, [*_noted(places), places.share])
    places.share.mkdir(mode=0o700)
    stack.callback(shutil.rmtree, places.share, ignore_errors=True)
    return places


def remove_earlier(places: RunDir) -> None:
    """Removes shares of controllers that were killed; only the one that holds the run may."""
    for share in _noted(places):
        if share.name.startswith(PREFIX) and share != places.share:
            shutil.rmtree(share, ignore_errors=True)
    # A full disk leaves names of what is gone, which does no harm.
    with suppress(OSError):
        _note(places, [places.share])


def _noted(places: RunDir) -> list[Path]:
    lines = places.shares.read_text().splitlines() if places.shares.exists() else []
    return [Path(line) for line in lines]


def _note(places: RunDir, shares: list[Path]) -> None:
    replace(places.shares, "".join(f"{share}\n" for share in shares).encode())


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
        """In a few words; the name is the journal's, which may come from elsewhere."""
        steps = "1 step" if self.num_steps == 1 else f"{self.num_steps} steps"
        how = "can go on" if self.stopped is None else f"is over ({self.stopped.value})"
        name = visible(self.header.run)
        return f"{name}: {steps} taken, version {self.published} published; it {how}"


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
