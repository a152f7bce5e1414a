"""Finds and ends every process that descends from one, or bears its mark, by reading /proc."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gyre.sandboxes.watchdog import descendants
from gyre.types.errors import SandboxError

MARK = "GYRE_SANDBOX"
"""Variable that processes hand down to their children, through new sessions and double forks."""
PROC = Path("/proc")
KILL_S = 10.0
"""How long processes may take to die."""
POLL_S = 0.005
LOOKS = 3
"""So often in a row nobody is found before nobody is there: a process that forks and ends while
the table is read is missed, and so is its child, which was not in the table yet."""

_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One line of the process table."""

    pid: int
    parent: int
    started: int
    """With the pid it names a process, because pids are used again."""
    is_dead: bool


def adopt_orphans() -> None:
    """Descendants that lose their parent become this process's own children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        message = f"prctl: {os.strerror(ctypes.get_errno())}"
        raise SandboxError(message, retryable=False)


class SandboxProcesses:
    """The processes of one sandbox.

    They bear its mark, or descend from one that does. In a process that adopts orphans and serves
    this sandbox alone, all its descendants are members, so that shedding the environment helps
    nobody.
    """

    def __init__(self, mark: str, *, owns_descendants: bool) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._owns_descendants = owns_descendants
        self.is_swept = False
        """Nobody is left whom another process started, so that descendants are all there are."""

    def alive(self) -> list[ProcessEntry]:
        table = {one.pid: one for one in _table()}
        me = os.getpid()
        roots = {pid for pid in table if pid != me and self._bears_mark(pid)}
        if self._owns_descendants:
            roots.add(me)
        found = [one for one in table.values() if _descends(one, roots, table)]
        return [one for one in found if one.pid != me and not one.is_dead]

    def _own(self) -> list[ProcessEntry]:
        """Alive among the descendants of this process, without a look at all others."""
        found = (_process(pid) for pid in descendants(os.getpid())[1:])
        return [one for one in found if one is not None and not one.is_dead]

    def kill(self, *, reaped_elsewhere: int | None) -> None:
        """None of them is alive; SandboxError if one does not die.

        `reaped_elsewhere` is a child of this process that somebody else waits for.
        """
        until = time.monotonic() + KILL_S
        look = self._own if self._owns_descendants and self.is_swept else self.alive
        looks = 0
        while looks < LOOKS:
            found = look()
            looks = 0 if found else looks + 1
            if found and time.monotonic() > until:
                message = f"processes that do not die: {[one.pid for one in found]}"
                raise SandboxError(message)
            # Stopped first, because what runs while others are killed may fork.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for one in found:
                    _send(one, number)
            if looks < LOOKS:
                time.sleep(POLL_S)
        self.is_swept = True
        if self._owns_descendants:
            _reap(except_for=reaped_elsewhere)

    def _bears_mark(self, pid: int) -> bool:
        try:
            return self._mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _table() -> Iterator[ProcessEntry]:
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (one := _process(int(entry.name))) is not None:
            yield one


def _process(pid: int) -> ProcessEntry | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold any letters, brackets too.
    fields = text.rpartition(")")[2].split()
    return ProcessEntry(
        pid=pid, parent=int(fields[1]), started=int(fields[19]), is_dead=fields[0] in "ZX"
    )


def _descends(one: ProcessEntry, roots: set[int], table: dict[int, ProcessEntry]) -> bool:
    seen: set[int] = set()
    at: ProcessEntry | None = one
    while at is not None and at.pid not in seen:
        if at.pid in roots:
            return True
        seen.add(at.pid)
        at = table.get(at.parent)
    return False


def _send(one: ProcessEntry, number: signal.Signals) -> None:
    """To this very process, and to nobody who has its pid now."""
    with suppress(ProcessLookupError, PermissionError):
        fd = os.pidfd_open(one.pid)
        try:
            now = _process(one.pid)
            if now is not None and now.started == one.started:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _reap(*, except_for: int | None) -> None:
    me = os.getpid()
    for one in _table():
        if one.parent == me and one.is_dead and one.pid != except_for:
            with suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)
