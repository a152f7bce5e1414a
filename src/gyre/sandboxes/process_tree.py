"""Finding, bounding and killing all processes of a sandbox."""

import asyncio
import ctypes
import math
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gyre.storage.safe_dir import visits
from gyre.types.errors import SandboxError
from gyre.types.tasks import Limits

LOOK_S = 0.05
"""How often processes and memory are looked at."""
DISK_S = 1.0
"""How often files are looked at, unless that takes long."""
DISK_SHARE = 20
"""Looking at files takes at most one part in so many of the time."""
RESERVE_BYTES = 2**28
"""A disk with less room is full for whoever has written more than that."""
ENTRY_BYTES = 4096
"""The least that a file counts, because empty ones use up a disk too."""
RESIDENT = ("RssAnon:", "RssShmem:")


class Watchdog:
    """Over one sandbox, whose first process is `init` and whose files lie in `folders`."""

    def __init__(self, init: int, limits: Limits, folders: Sequence[Path]) -> None:
        """What is None in the limits is not looked at."""
        self._init = init
        self._limits = limits
        self._folders = folders

    async def watch(self) -> str:
        """Returns when something is over its limit, with what and how far."""
        looks = [asyncio.create_task(self._watch_disk())]
        if self._limits.memory_bytes is not None or self._limits.processes is not None:
            looks.append(asyncio.create_task(self._watch_processes()))
        try:
            done, _ = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)

    async def _watch_processes(self) -> str:
        while True:
            most = self._limits.processes
            pids = descendants(self._init, most=most)
            if most is not None and (found := sum(map(threads_of, pids))) > most:
                return f"{found} processes and threads or more; {most} are allowed"
            room = self._limits.memory_bytes
            if room is not None and (used := sum(map(memory_of, pids))) > room:
                return f"{used} bytes of memory; {room} are allowed"
            await asyncio.sleep(LOOK_S)

    async def _watch_disk(self) -> str:
        while True:
            began = time.monotonic()
            room = self._limits.disk_bytes
            most = RESERVE_BYTES if room is None else room
            used = await asyncio.to_thread(size_of, self._folders, most)
            if room is not None and used > room:
                return f"{used} bytes on disk; {room} are allowed"
            if used > RESERVE_BYTES and min(map(_free, self._folders)) < RESERVE_BYTES:
                return f"the disk is full, and {used} bytes or more on it are this execution's"
            await asyncio.sleep(max(DISK_S, DISK_SHARE * (time.monotonic() - began)))


def descendants(pid: int, most: int | None = None) -> list[int]:
    """The process and all below it, or one more than `most`; a whole namespace from its first."""
    found: list[int] = []
    waiting = [pid]
    while waiting and (most is None or len(found) <= most):
        one = waiting.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def memory_of(pid: int) -> int:
    """Bytes of it that no file holds; what several processes share counts for each."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(RESIDENT))


def threads_of(pid: int) -> int:
    fields = _stat(pid)
    return 0 if fields is None else int(fields[17])


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process behind its name; None if it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold any letters, brackets too.
    return text.rpartition(")")[2].split()


def size_of(folders: Iterable[Path], most: int) -> int:
    """Bytes that they take on the disk, or more than `most`; what vanishes meanwhile is nothing.

    Counting would never end where programs keep moving folders to where it has yet to come.
    """
    total = 0
    for folder in folders:
        # A folder that is not there takes nothing.
        with suppress(OSError):
            for visit in visits(folder, forgives=True):
                for entry in visit.entries:
                    total += max(ENTRY_BYTES, entry.status.st_blocks * 512)
                if total > most:
                    return total
    return total


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return RESERVE_BYTES


MARK = "GYRE_SANDBOX"
"""Variable that processes hand down to their children, through new sessions and double forks."""
PROC = Path("/proc")
KILL_S = 10.0
"""How long processes may take to die once they are killed."""
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
        raise SandboxError(f"prctl: {os.strerror(ctypes.get_errno())}", retryable=False)


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
        until = math.inf
        look = self._own if self._owns_descendants and self.is_swept else self.alive
        looks = 0
        while looks < LOOKS:
            # A thread that stood still while it looked cannot tell how long they took to die.
            is_late = time.monotonic() > until
            found = look()
            looks = 0 if found else looks + 1
            if found and is_late:
                raise SandboxError(f"processes that do not die: {[one.pid for one in found]}")
            # Stopped first, because what runs while others are killed may fork.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for one in found:
                    _send(one, number)
            if found:
                until = min(until, time.monotonic() + KILL_S)
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
    fields = _stat(pid)
    if fields is None:
        return None
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
