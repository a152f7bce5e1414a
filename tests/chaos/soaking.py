"""A run whose processes are killed and stopped until it has taken all its steps.

A blow falls only in a moment in which executions run and calls are in flight. Where the run's
engines hold calls until there were so many blows (tests/chaos/held_calls.py), such a moment comes
for every blow, however quick or slow the machine is.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.held import Held, held
from tests.chaos.held_calls import variables
from tests.chaos.victims import Kind, Victim, calls_in_flight, victims
from tests.waiting import PATIENCE_S

from gyre.journal.journal import JournalContents, read
from gyre.scheduler.replay import JOURNAL_EVENTS

LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What was done to one process, and what the run had in hand then."""

    kind: Kind
    name: str
    is_kill: bool
    at_s: float
    executions: int
    """Supervisors that were alive."""
    calls: int
    """In flight at the proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """A run that is over."""

    status: int
    folder: Path
    seconds: float
    blows: Sequence[Blow]
    samples: Mapping[str, Sequence[Held]]
    """By process, over the whole run."""
    reading: JournalContents
    said: str


@dataclass
class Soak:
    """One run and its misfortunes."""

    file: Path
    folder: Path
    """Of the run."""
    seed: int
    kinds: Sequence[Kind]
    every_s: tuple[float, float] = (1.0, 3.0)
    stop_share: float = 0.25
    """Part of the blows that stop a process and do not kill it."""
    stopped_s: float = 1.0
    """How long those that are not cells stay so."""
    spared_s: float = 12.0
    """How long a process that was struck is left alone: who dies again and again is given up."""
    most: int | None = None
    """Blows in all; None: until the end."""
    patience_s: float = 5 * PATIENCE_S
    """Of the whole run, which starts a dozen processes one after the other."""
    struck: Callable[[int], None] = lambda _: None
    """Told how many blows there were, after each."""
    blows: list[Blow] = field(default_factory=list)
    samples: dict[str, list[Held]] = field(default_factory=dict)
    _thawing: list[tuple[float, Victim]] = field(default_factory=list)
    _deck: list[Kind] = field(default_factory=list)
    """Kinds that come next; each comes once before any comes again."""

    def run(self) -> Soaked:
        """To the end of the run; nothing that it started is left."""
        self._began = time.monotonic()
        self._random = Random(f"{self.seed}/soak")
        self._said = (self.file.parent / "said").open("ab")
        controller = self._start("train", str(self.file))
        try:
            controller = self._strike(controller)
            status = controller.wait()
        finally:
            for _, victim in self._thawing:
                victim.send(signal.SIGCONT)
            if controller.poll() is None:
                controller.kill()
                controller.wait()
                for victim in victims(self.folder):
                    victim.send(signal.SIGKILL)
            self._said.close()
        return Soaked(
            status=status,
            folder=self.folder,
            seconds=self._elapsed_s,
            blows=tuple(self.blows),
            samples=self.samples,
            reading=read(self.folder / "journal", kinds=JOURNAL_EVENTS),
            said=(self.file.parent / "said").read_text(errors="replace"),
        )

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "gyre", *arguments]
        return subprocess.Popen(command, stdout=self._said, stderr=self._said, env=variables())

    def _strike(self, controller: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
        """Until the run ends; the controller that it ended under."""
        next_s = self._pause()
        while controller.poll() is None:
            assert self._elapsed_s < self.patience_s, "the run does not end"
            time.sleep(LOOK_S)
            self._sample(controller.pid)
            self._thaw()
            is_enough = not self.kinds or (self.most is not None and len(self.blows) >= self.most)
            if is_enough or time.monotonic() < next_s:
                continue
            if (victim := self._next_victim(controller.pid)) is not None:
                controller = self._blow(victim, controller)
                self.struck(len(self.blows))
                next_s = self._pause()
        return controller

    def _next_victim(self, controller: int) -> Victim | None:
        """One of the kind that comes next, if the run has something to lose now."""
        alive = victims(self.folder)
        alive.append(Victim(kind="controller", name="controller", pid=controller))
        if not any(one.kind == "core" for one in alive):
            return None
        if not self._deck:
            self._deck = self._random.sample(self.kinds, len(self.kinds))
        spared = {one.name for one in self.blows if self._elapsed_s - one.at_s < self.spared_s}
        found = [one for one in alive if one.kind == self._deck[-1] and one.name not in spared]
        executions = sum(one.kind == "supervisor" for one in alive)
        calls = calls_in_flight(self.folder)
        if not (found and executions and calls):
            return None
        victim = self._random.choice(found)
        self._deck.pop()
        self.blows.append(
            Blow(
                kind=victim.kind,
                name=victim.name,
                is_kill=self._random.random() >= self.stop_share,
                at_s=self._elapsed_s,
                executions=executions,
                calls=calls,
            )
        )
        return victim

    def _blow(
        self, victim: Victim, controller: "subprocess.Popen[bytes]"
    ) -> "subprocess.Popen[bytes]":
        """Strikes it; the controller that the run has then."""
        if not self.blows[-1].is_kill:
            victim.send(signal.SIGSTOP)
            if victim.kind not in ("core", "satellite", "engine"):
                # A cell that does not answer is fenced and killed by its controller.
                self._thawing.append((time.monotonic() + self.stopped_s, victim))
            return controller
        victim.send(signal.SIGKILL)
        if victim.kind != "controller":
            return controller
        controller.wait()
        return self._start("resume", str(self.folder))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _thaw(self) -> None:
        for until, victim in list(self._thawing):
            if time.monotonic() >= until:
                victim.send(signal.SIGCONT)
                self._thawing.remove((until, victim))

    def _pause(self) -> float:
        return time.monotonic() + self._random.uniform(*self.every_s)

    def _sample(self, controller: int) -> None:
        named = {"controller": controller}
        for path in (self.folder / "pids").glob("*"):
            try:
                named[path.name] = int(path.read_text())
            except (OSError, ValueError):
                continue
        for name, pid in named.items():
            if (one := held(pid)) is not None:
                self.samples.setdefault(name, []).append(one)
