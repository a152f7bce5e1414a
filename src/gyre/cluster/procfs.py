"""/proc: pids, CPU time, lock holders, port owners.

Seconds of processors by processes and all that they started, read from /proc.

Rule 1: a process that has ended counts with the parent that waited for it, so that nothing is
lost and nothing counts twice.
"""

import os
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def holds_log(pid: int, log: Path) -> bool:
    """Whether the process lives and writes its errors there, as no other program would."""
    try:
        return Path(f"/proc/{pid}/fd/2").readlink() == log.resolve()
    except OSError:
        return False


def holder_of(log: Path) -> int | None:
    """The living process that writes its errors there, found among all processes."""
    pids = (int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())
    return next((pid for pid in pids if leads(pid) and holds_log(pid, log)), None)


def leads(pid: int) -> bool:
    """Its children may have the same log, but the session is its own."""
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def end_pid(pid: int, number: signal.Signals) -> None:
    """The signal for a process that leads a session; when it kills, for all of its group."""
    with suppress(ProcessLookupError):
        if number is signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def lock_holder(path: Path) -> int | None:
    """The process that has locked the file, if this machine knows one."""
    try:
        found, lines = path.stat(), Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        _, kind, _, _, pid, where, *_ = line.replace("-> ", "").split()
        if (kind, where) == ("FLOCK", place) and int(pid) > 0:
            return int(pid)
    return None


LISTENS = "0A"
"""A socket's state in the kernel's tables."""


def holder_of_port(port: int, proc: Path = Path("/proc")) -> str | None:
    """Its process and what that is, as people know it; None where this process cannot tell."""
    sockets = {f"socket:[{one}]" for one in _listening(port, proc)}
    if not sockets:
        return None
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        # Others' processes may not be looked at, and any may end meanwhile.
        with suppress(OSError):
            if any(str(one.readlink()) in sockets for one in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"process {folder.name} ({' '.join(words).strip()[:100]})"
    return None


def _listening(port: int, proc: Path) -> list[str]:
    """Inodes of the sockets."""
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                place, state, inode = words[1], words[3], words[9]
                if state == LISTENS and int(place.rpartition(":")[2], 16) == port:
                    found.append(inode)
    return found


PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One process, as /proc has it."""

    pid: int
    parent: int
    session: int
    started: int
    """Ticks after the machine; with its number it names a process for good."""
    own_s: float
    waited_s: float
    """Of children that have ended, and theirs."""


class ProcessTable:
    """All processes of the machine at one moment."""

    def __init__(self, running: Mapping[int, ProcessStat]) -> None:
        self.running = running
        self._children: dict[int, list[int]] = {}
        for one in running.values():
            self._children.setdefault(one.parent, []).append(one.pid)

    @classmethod
    def now(cls) -> "ProcessTable":
        found = (_read(int(one.name)) for one in PROC.iterdir() if one.name.isdecimal())
        return cls({one.pid: one for one in found if one is not None})

    def under(self, root: int) -> Iterator[ProcessStat]:
        """The process and its descendants; nothing where it has ended."""
        waiting = [root]
        while waiting:
            if (found := self.running.get(waiting.pop())) is not None:
                yield found
                waiting += self._children.get(found.pid, ())

    def alone(self, pid: int) -> float | None:
        """What one process took itself."""
        found = self.running.get(pid)
        return None if found is None else found.own_s

    def leaders(self, but: Collection[int]) -> Iterator[int]:
        """Those that lead a session, but these."""
        return (pid for pid, one in self.running.items() if one.session == pid and pid not in but)


class ProcessMeter:
    """Processor seconds of a process and all below it, from one reading to the next."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int], float] | None = None
        """Which process it was, and all that it had taken."""

    def took(self, table: ProcessTable, root: int) -> float | None:
        """Since the last reading of this process, or since it began; None where it is gone."""
        found = table.running.get(root)
        if found is None:
            self._last = None
            return None
        who = (found.pid, found.started)
        total = sum(one.own_s + one.waited_s for one in table.under(found.pid))
        before = self._last[1] if self._last is not None and self._last[0] == who else 0.0
        self._last = (who, total)
        # What left the tree with its seconds, as a daemon does, cannot make it negative.
        return max(0.0, total - before)


class ProcessMeters:
    """Processor seconds of several processes and all below them, whose number changes."""

    def __init__(self) -> None:
        self._meters: dict[int, ProcessMeter] = {}

    def took(self, table: ProcessTable, roots: Collection[int]) -> float | None:
        """All together; None where all of them are gone."""
        self._meters = {pid: self._meters.get(pid, ProcessMeter()) for pid in roots}
        took = [one.took(table, pid) for pid, one in self._meters.items()]
        known = [seconds for seconds in took if seconds is not None]
        return sum(known) if known else None


def _read(pid: int) -> ProcessStat | None:
    try:
        found = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # Its name is in brackets, and may hold any bytes: brackets, blanks, half a letter.
    fields = found[found.rindex(b")") + 2 :].split()
    user, system, waited_user, waited_system = (int(one) * _TICK_S for one in fields[11:15])
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        own_s=user + system,
        waited_s=waited_user + waited_system,
    )
