"""Trackers from config, each in a background thread.

Trackers in threads of their own: a run neither waits for them nor stops because of them.

Rule 1: `log` returns at once, and raises nothing.
Rule 2: what goes wrong is a warning, one for each tracker and kind of trouble.
Rule 3: `close` waits for what is under way, and not longer than it is allowed to.
"""

import importlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType

from gyre.config.run_config import TrackersConfig
from gyre.types.errors import ConfigError
from gyre.types.protocols import Tracker

MOST_WAITING = 1000
"""Logs that wait for one tracker; what comes while there are so many is lost."""
CLOSE_S = 30.0

_log = logging.getLogger(__name__)


class Trackers:
    """All trackers of a run as one, which cannot fail."""

    def __init__(self, adapters: "Sequence[TrackerAdapter]") -> None:
        self._warnings: list[str] = []
        self._is_closed = False
        self._lanes = [_Lane(adapter, self._warnings) for adapter in adapters]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong so far, for people."""
        return tuple(self._warnings)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if self._is_closed:
            return
        logged = _Logged(values=dict(values), step=step)
        for lane in self._lanes:
            lane.put(logged)

    def close(self, *, within_s: float = CLOSE_S) -> None:
        """Blocks while trackers write what they were given; what is late by then is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        until = time.monotonic() + within_s
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.join(until)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logged:
    values: dict[str, float]
    step: int


class _Lane:
    """One tracker, and the thread that opens it, logs to it and closes it."""

    def __init__(self, adapter: "TrackerAdapter", warnings: list[str]) -> None:
        """Each kind of trouble is added to the warnings once."""
        self._adapter = adapter
        self._warnings = warnings
        self._waiting: SimpleQueue[_Logged | None] = SimpleQueue()
        self._tracker: Tracker | None = None
        self._troubles: set[str] = set()
        self._num_refused = 0
        self._num_failed = 0
        # A daemon, because a library that hangs must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._work, name=f"tracker-{adapter.name}", daemon=True
        )
        self._thread.start()

    def put(self, logged: _Logged) -> None:
        if self._waiting.qsize() >= MOST_WAITING:
            self._num_refused += 1
            self._trouble("slow", f"{MOST_WAITING} logs wait for it, more are lost")
        else:
            self._waiting.put(logged)

    def end(self) -> None:
        self._waiting.put(None)

    def join(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._trouble("late", "did not finish in time")
        # After the thread's end nothing waits; before it, or when it died, the end mark does.
        num_waiting = max(0, self._waiting.qsize() - 1)
        num_lost = self._num_refused + self._num_failed + num_waiting
        if num_lost:
            self._trouble("lost", f"logs that were lost: {num_lost}")

    def _work(self) -> None:
        self._tried("open", self._open)
        while (logged := self._waiting.get()) is not None:
            if self._tracker is None or not self._tried("log", self._passed(logged)):
                self._num_failed += 1
        if self._tracker is not None:
            self._tried("close", self._tracker.close)

    def _open(self) -> None:
        self._tracker = self._adapter.open()

    def _passed(self, logged: _Logged) -> Callable[[], None]:
        assert self._tracker is not None
        tracker = self._tracker
        return lambda: tracker.log(logged.values, step=logged.step)

    def _tried(self, doing: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:  # because a library may raise anything, and the run goes on
            first = (str(error).strip().splitlines() or ["no message"])[0]
            self._trouble(doing, f"{doing}: {type(error).__name__}: {first}")
            return False
        return True

    def _trouble(self, kind: str, message: str) -> None:
        if kind not in self._troubles:
            self._troubles.add(kind)
            warning = f"tracker {self._adapter.name}: {message}"
            self._warnings.append(warning)
            _log.warning("%s", warning)


ID_FILE = "tracked-as"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker is opened with."""

    name: str
    """For people; other runs may have the same."""
    id: str
    """This run's alone, and the same after a resume."""
    folder: Path
    """The run's; trackers that write files write them there."""
    project: str
    """What runs are gathered under, where a tracker has such a thing."""
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """What the run was started with, by path, for those who compare runs."""
    resumed_at: int | None = None
    """Steps from this one on are made again; None for a run that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerAdapter:
    """A tracker that is not open yet, because that may take time or fail."""

    name: str
    module: ModuleType
    run: TrackedRun

    def open(self) -> Tracker:
        opened: Tracker = self.module.opened(self.run)
        return opened


def kept_id(folder: Path) -> str:
    """The id that stands in the run's folder; made when there is none."""
    path = folder / ID_FILE
    found = path.read_text().strip() if path.exists() else ""
    if found:
        return found
    made = secrets.token_hex(6)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(made + "\n")
    return made


def open_trackers(
    section: TrackersConfig,
    *,
    name: str,
    folder: Path,
    settings: Mapping[str, str | int | float | bool] | None = None,
    resumed_at: int | None = None,
) -> Trackers:
    """A library that is not installed is a ConfigError; a later failure is a warning."""
    modules = {kind: _module(kind) for kind in section.kinds}
    if not modules:
        return Trackers(())
    run = TrackedRun(
        name=name,
        id=kept_id(folder),
        folder=folder,
        project=section.project,
        settings={} if settings is None else settings,
        resumed_at=resumed_at,
    )
    return Trackers(
        [TrackerAdapter(name=kind, module=module, run=run) for kind, module in modules.items()]
    )


def _module(kind: str) -> ModuleType:
    try:
        return importlib.import_module(f"gyre.observability.trackers.{kind}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != kind:
            raise
        message = f"trackers.{kind} needs {kind}: pip install 'gyre-rl[{kind}]'"
        raise ConfigError(message) from error
