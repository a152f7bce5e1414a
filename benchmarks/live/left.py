"""Who is left of a run: known by its folder, waited for, and ended where waiting does not help.

Rule 1: who shares a GPU is killed last, because what it had in hand may take others with it.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_S = 0.1
LEAVE_S = 30.0
"""How long the processes of a run that is over may take to end by themselves."""
STOP_S = 30.0
"""How long they may take once the run is stopped."""
KILL_S = 10.0
ENDED = "ZX"
"""States of a process that only its parent still knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """As it is in /proc."""

    pid: int
    parent: int
    session: int
    began: int
    """With the pid it names a process, because pids are used again."""
    is_ours: bool
    """Whether it works in the folder, writes there, or names it in its command."""


class Left:
    """Processes that have to do with a folder, with their sessions and descendants.

    Who was seen among them stays so until it ends, whatever became of its parents.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._known: set[tuple[int, int]] = set()
        self._sessions: set[int] = set()

    def look(self) -> set[int]:
        """Who lives now."""
        seen = _processes(self._folder)
        found = {one.pid for one in seen if one.is_ours or (one.pid, one.began) in self._known}
        while True:
            self._sessions |= {one.session for one in seen if {one.pid, one.session} <= found}
            more = {
                one.pid
                for one in seen
                if one.pid in found or one.parent in found or one.session in self._sessions
            }
            if more == found:
                break
            found = more
        self._known = {(one.pid, one.began) for one in seen if one.pid in found}
        return found

    def gone(self, run: Path, *, leave_s: float = LEAVE_S) -> None:
        """Nobody is left; raises RuntimeError if somebody still is.

        Whoever does not end by itself is told by `gyre stop` of the run, and killed after that.
        """
        if self._are_gone(leave_s):
            return
        with suppress(subprocess.TimeoutExpired):
            stop = [sys.executable, "-m", "gyre", "stop", str(run)]
            subprocess.run(stop, check=False, timeout=STOP_S, stdout=subprocess.DEVNULL)
        if self._are_gone(LOOK_S):
            return
        for pid in self.look():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self._are_gone(KILL_S):
            raise RuntimeError(f"{self._folder}: processes are left that cannot be killed")

    def _are_gone(self, within_s: float) -> bool:
        until = time.monotonic() + within_s
        while self.look():
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_S)
        return True


def around() -> dict[str, Any]:
    """What else a run begins beside, so that a drift from run to run can be told."""
    own = os.getpid()
    others = [one for one in _commands() if one != own]
    return {"load_before": os.getloadavg()[0], "processes_before": len(others)}


def _processes(folder: Path) -> list[Process]:
    """All that live but this one and who started it."""
    above = _above(os.getpid())
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (path / "stat").read_text().rsplit(")", 1)[1].split()
            if stat[0] in ENDED or int(path.name) in above:
                continue
            one = Process(
                pid=int(path.name),
                parent=int(stat[1]),
                session=int(stat[3]),
                began=int(stat[19]),
                is_ours=_is_of(path, folder),
            )
            found.append(one)
    return found


def _above(pid: int) -> set[int]:
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(stat.rsplit(")", 1)[1].split()[1])
    return found


def _is_of(path: Path, folder: Path) -> bool:
    for name in ("cwd", "fd/1", "fd/2"):
        with suppress(OSError):
            if (path / name).readlink().is_relative_to(folder):
                return True
    with suppress(OSError):
        words = (path / "cmdline").read_bytes().split(b"\0")
        inside = os.fsencode(folder) + b"/"
        return any(inside in word + b"/" for word in words)
    return False


def _commands() -> list[int]:
    """Processes that run a program; threads of the kernel have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found
