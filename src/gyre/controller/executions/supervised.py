"""One execution under its supervisor, as a controller knows it."""

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gyre.cluster.births import ForkedProcess
from gyre.cluster.liveness import QUESTIONS, SilenceTimer
from gyre.rollout.heartbeat import last_heartbeat
from gyre.rollout.main import LOG_FILE
from gyre.rollout.spec import ProxyTotals
from gyre.storage.lock import is_taken
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import Closed, Terminated
from gyre.types.tasks import Task

LOOK_S = 0.1
"""How often it is looked whether a supervisor that is nobody's child has ended."""

SILENT_S = 120.0
"""A supervisor that shows for so long not that it lives counts as dead; it does every few."""
KILL_S = 5.0
"""How long one that is killed may take to be gone, wherever it is."""


class HeldTime:
    """Seconds that an execution's calls were held, also by proxies that have ended since."""

    def __init__(self, held_s: float = 0.0) -> None:
        """`held_s` is what was counted before."""
        self._before_s = 0.0
        self._last_s = held_s

    def counted(self, held_s: float) -> float:
        """All in all, when the present proxy counts so much; a new one begins with nothing."""
        if held_s < self._last_s:
            self._before_s += self._last_s
        self._last_s = held_s
        return self._before_s + held_s


def unheard() -> SilenceTimer:
    """Of a supervisor; after a pause of everybody it has time to show that it lives."""
    return SilenceTimer(SILENT_S, questions=QUESTIONS)


class ProcessSignaller(Protocol):
    """Who reaches processes by their logs, wherever they are."""

    def signal_log_holder(self, log: str, number: int) -> None: ...


def signal_supervisor(folder: Path, number: signal.Signals, by: ProcessSignaller) -> None:
    """For the supervisor of an execution's folder that is nobody's child, if it lives."""
    if is_taken(folder):
        by.signal_log_holder(str(folder / LOG_FILE), number)


def stop(folder: Path, by: ProcessSignaller) -> None:
    """The same one hears that its run is stopped; one of a Gyre that knew of no such thing ends."""
    signal_supervisor(
        folder, signal.SIGUSR1 if last_heartbeat(folder) is None else signal.SIGUSR2, by
    )


async def end(folder: Path, within_s: float, by: ProcessSignaller) -> None:
    """The same one has ended, by itself if it does so in time."""
    if not await _has_ended(folder, within_s):
        signal_supervisor(folder, signal.SIGKILL, by)
        # On another machine that takes a while, and whoever carries the order must not go before.
        await _has_ended(folder, KILL_S)


async def _has_ended(folder: Path, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            while is_taken(folder):
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return False
    return True


@dataclass(slots=True)
class SupervisedExecution:
    """One execution, from its launch on."""

    name: ExecutionId
    folder: Path
    task: Task
    by: ProcessSignaller
    """Reaches its supervisor, where that is nobody's child."""
    birth: "asyncio.Task[ForkedProcess] | None" = None
    """Of its supervisor; the last one, where it was revived."""
    is_cancelled: bool = False
    """It is surplus, or the run is over."""
    is_adopted: bool = False
    """An earlier controller launched it; its supervisor is nobody's child, or has died."""
    was_terminated: bool = False
    """An earlier controller heard so and wrote it down."""
    key: str = field(default="", repr=False)
    num_heard: int = 0
    read_bytes: int | None = None
    """Of its facts, when they were last read where they lie."""
    num_revivals: int = 0
    has_run: bool = False
    """Its harness was launched; another supervisor needs no key for what is left."""
    terminated: Terminated | None = None
    closed: Closed | None = None
    told: ProxyTotals = field(default_factory=ProxyTotals)
    held: HeldTime = field(default_factory=HeldTime)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    beat: int | None = None
    """By which its supervisor showed last that it lives."""
    silence: SilenceTimer = field(default_factory=unheard)

    @property
    def is_lost(self) -> bool:
        """Its supervisor has ended, or could not be born again."""
        if self.birth is None:
            return self.is_adopted and not is_taken(self.folder)
        if not self.birth.done():
            return False
        return self.process is None or self.process.is_over

    @property
    def is_supervised(self) -> bool:
        """Somebody reads what it is told."""
        return self.process is not None or (self.birth is None and self.is_adopted)

    def is_hung(self, now: float) -> bool:
        """Its supervisor lives and does nothing; one that never showed it lives is not judged."""
        beat = last_heartbeat(self.folder)
        if beat is None or not self.is_supervised:
            return False
        if beat != self.beat:
            self.beat = beat
            self.silence.heard(now)
        return self.silence.is_over(now)

    def kill(self) -> None:
        """Its supervisor ends, and another may take its place, with a silence of its own."""
        self.silence = unheard()
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
        else:
            signal_supervisor(self.folder, signal.SIGKILL, self.by)

    def surplus(self) -> None:
        """Its supervisor, if there is one, hears that it should end unassessed."""
        if self.process is not None:
            self.process.signal(signal.SIGUSR1)
        elif self.is_adopted and self.birth is None:
            signal_supervisor(self.folder, signal.SIGUSR1, self.by)

    def stop(self) -> None:
        """Its supervisor hears that the run is stopped, and may be resumed."""
        if self.process is not None:
            self.process.signal(signal.SIGUSR2)
        elif self.is_adopted and self.birth is None:
            stop(self.folder, self.by)

    async def end(self, within_s: float) -> None:
        """Its supervisor has ended, by itself if it does so in time."""
        if self.process is not None:
            await self.process.end(within_s)
        elif self.birth is None and self.is_adopted:
            await end(self.folder, within_s, self.by)

    @property
    def process(self) -> ForkedProcess | None:
        """Its supervisor, once that is born."""
        if self.birth is None or not self.birth.done() or self.birth.exception() is not None:
            return None
        return self.birth.result()
