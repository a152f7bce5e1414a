"""Looks at what the programs of a sandbox use, where no kernel bounds it, and says what is over."""

import asyncio
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gyre.storage.safe_dir import visits
from gyre.types.sandboxes import Limits

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
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    # The name stands in brackets and may hold any letters, brackets too.
    return int(text.rpartition(")")[2].split()[17])


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
