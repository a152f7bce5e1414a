"""Processes of this machine, known by the log they write and the session they lead."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def holds_log(pid: int, log: Path) -> bool:
    """Whether the process lives and writes its errors there, as no other program would."""
    try:
        return Path(f"/proc/{pid}/fd/2").readlink() == log.resolve()
    except OSError:
        return False


def holder_of(log: Path) -> int | None:
    """Whoever lives and writes its errors there; all processes are asked."""
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
